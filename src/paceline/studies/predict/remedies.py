"""What somebody could change: each change is a question of its own, so that it is predicted before it is printed."""

from collections.abc import Iterator
from dataclasses import replace

from paceline import specs
from paceline.clusters.catalogue import DeviceSheet, find_network
from paceline.clusters.profile import Profile
from paceline.codecs import build_codec
from paceline.codecs.base import Identity
from paceline.errors import UsageError
from paceline.runtimes.settings import MOST_SERVERS
from paceline.strategies import STRATEGIES
from paceline.strategies.all_reduce import AllReduceSGD
from paceline.studies.predict.model import Quality
from paceline.studies.predict.modelled import Modelled
from paceline.studies.predict.places import Alike
from paceline.studies.predict.question import Question, Remedy
from paceline.studies.predict.standing import find_standing, inside_name
from paceline.studies.predict.words import USUAL_NETWORK, PredictRequest

NETWORKS = (
    "2.5gbit",
    "10gbit",
    "25gbit",
    "100gbit",
    "200gbit",
    "infiniband-hdr",
    "400gbit",
    "infiniband-ndr",
)
"""What people buy, slowest first."""

BATCHES = (2, 4)
"""Times the batch."""

LOCAL_SGD = "local-sgd:period=16"
CODEC = "half"
COLLECTIVE = "halving-doubling"


def find_remedies(
    words: PredictRequest,
    question: Question,
    model: Modelled,
    profile: Profile | None,
    sheet: DeviceSheet | None,
) -> Iterator[Remedy]:
    """Everything that is worth predicting; within a kind, what costs least comes first."""
    if isinstance(model.place, Alike):
        for name, quality in _networks(words):
            yield _remedy("network", name, replace(question, network=quality))
        for name in _inside(words, sheet):
            standing = find_standing(replace(words, inside=name), profile)
            other = replace(model, place=standing.place, links=standing.words, names=standing.names)
            yield _remedy("inside", name, replace(question, model=other))
    yield from _settings(words, question, model)
    for times in BATCHES:
        try:
            larger = replace(question, batch=times * question.batch)
        except UsageError:  # there is not as much data
            return
        yield _remedy("batch-size", str(larger.batch // question.accumulate), larger)


def _settings(words: PredictRequest, question: Question, model: Modelled) -> Iterator[Remedy]:
    """Other ways to agree, of which a table of several strategies says enough itself."""
    built = [specs.build(strategy, STRATEGIES, "strategy") for strategy in words.strategies]
    served = any(strategy.served for strategy in built)
    if served and 2 * words.servers <= MOST_SERVERS:
        yield _remedy("servers", str(2 * words.servers), replace(question, servers=2 * words.servers))
    codec = CODEC if isinstance(build_codec(model.codec), Identity) else "identity"
    yield _remedy("codec", codec, replace(question, model=replace(model, codec=codec), gathers=None))
    if not served and words.collective == "native":
        yield _remedy(
            "collective", COLLECTIVE, replace(question, model=replace(model, collective=COLLECTIVE))
        )
    if len(built) > 1 or not (served or isinstance(built[0], AllReduceSGD)):
        return
    other = "all-reduce" if served else LOCAL_SGD
    yield _remedy("strategy", other, replace(question, strategies=(other,), servers=1))


def _remedy(option: str, value: str, question: Question) -> Remedy:
    return Remedy(kind=option, what=f"--{option} {value}", question=question)


def _networks(words: PredictRequest) -> Iterator[tuple[str, Quality]]:
    """Those that carry more than the one there is, compared with it; none where all workers are on one host.

    All hosts have the same link, so the factors make it exactly the other one; no factor makes a latency of 0 another.
    """
    if words.workers is not None and max(words.workers) <= (words.per_host or 1):
        return
    there = find_network(words.network or USUAL_NETWORK)
    for other in map(find_network, NETWORKS) if there.latency else ():
        if other.bandwidth > there.bandwidth:
            yield other.name, Quality(other.bandwidth / there.bandwidth, other.latency / there.latency)


def _inside(words: PredictRequest, sheet: DeviceSheet | None) -> Iterator[str]:
    """Those that such devices can have, and that are faster than the one there is."""
    if sheet is None or words.per_host is None or words.per_host == 1:
        return
    linked = inside_name(words)
    there = 0.0 if linked is None else find_network(linked).bandwidth
    for name in sheet.inside:
        if find_network(name).bandwidth > there:
            yield name

"""A recorded run as the predictor sees it: its ranks as hosts of their own speed, and the link that explains it.

Every rank is a host with one worker, also where several share one: a record tells how fast each rank was, and what an
exchange took. The model's layers are not recorded, so its parameters are taken to be pieces of equal size, whose
gradients backward completes at an even pace. Whether that describes the run is checked: its own step is predicted.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

from paceline.clusters.cluster import CIPHER, MEMORY, Cluster, Device, Host, Link
from paceline.codecs import build_codec
from paceline.codecs.context import Layout
from paceline.costs.coding import UNCODED
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.device import StepCost
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown
from paceline.runtimes.virtual.shape import JobShape
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.predict.forecast import coding_of
from paceline.studies.predict.prediction import PredictedStep
from paceline.studies.predict.setup import Setup, with_slower
from paceline.studies.predict.step import predict_step

PIECES = 64
ALIKE = 1.1
"""Ranks whose computing differs by less count as equally fast: so much varies by itself."""
CLOSE = 1.25
"""How far off, as a factor, the prediction of the run's own step may be for any other to be believed."""
SMALL = 64
"""Bytes of the sums of an evaluation."""
SHORT = 32_768
"""Bytes of a message below which its latency is what takes the time, where nothing else tells."""
MOST_OF_IT = 0.95
"""The part of the transfers that latency takes at most: some bandwidth is needed too."""
SLOWEST, HALVINGS = 2.0**16, 12
"""How much slower than what is exposed a link may be, and how often the range of that factor is halved."""
NO_TIME = 1e15
"""Bytes a second of a link that takes none."""


@dataclass(frozen=True)
class RebuiltRun:
    """``setup`` predicts the run's own step to within CLOSE."""

    seen: ObservedSteps
    setup: Setup
    messages: float
    """Of a step, one after the other."""
    by_latency: float | None
    """The part of the transfers that is latency; None where the record does not tell."""

    @cached_property
    def now(self) -> PredictedStep:
        return predict_step(self.setup)

    @property
    def is_close(self) -> bool:
        workers = len(self.seen.workers)
        measured = sum(1 / self.seen.step(rank).total for rank in self.seen.workers) / workers
        return abs(log(self.now.seconds * measured)) <= log(CLOSE)

    def gain(self, changed: Setup) -> float:
        """Samples a second over those of the run."""
        return predict_step(changed).rate / self.now.rate

    def with_computing(self, seconds: dict[int, float]) -> Setup:
        """With ranks that compute for so long in a step."""
        return replace(self.setup, cluster=_cluster(self.seen, seconds, self._link))

    @property
    def _link(self) -> Link:
        return self.setup.cluster.groups[0].host.link


def rebuild(seen: ObservedSteps) -> RebuiltRun | None:
    """None where the predictor does not describe the run: then nothing is said of what would help."""
    try:
        found = _rebuild(seen)
        return found if found is not None and found.is_close else None
    except UsageError:  # a strategy that cannot be predicted
        return None


def _rebuild(seen: ObservedSteps) -> RebuiltRun | None:
    settings, forecast = seen.run.config.settings, seen.run.forecast
    probe = forecast.codec.probe if forecast and forecast.codec else None
    coded = build_codec(settings.codec).compresses
    if coded and probe is None:
        return None
    layout = Layout(tuple(map(str, range(len(probe.shapes)))), probe.shapes) if probe else _pieces(seen)
    shape = JobShape(name="job", layout=layout, buffers=probe.buffers if probe else 0)
    bare = Setup(
        strategy=settings.strategy,
        cluster=_cluster(seen, _computing(seen), MEMORY),
        cost=_cost(seen),
        shape=shape,
        coding=coding_of(settings, probe, shape) if coded and probe else UNCODED,
        collective=settings.collective,
        servers=settings.servers,
        samples=round(seen.run.summary.samples / seen.run.summary.epochs)
        if seen.run.summary.epochs
        else None,
    )
    if len(seen.workers) < 2 or not seen.transfer:
        return RebuiltRun(seen, bare, 0.0, None)
    return _with_fitted_link(seen, bare)


def _pieces(seen: ObservedSteps) -> Layout:
    whole = max(1, seen.run.summary.parameters)
    many = min(PIECES, whole)
    return Layout.of_vectors(*(whole * (at + 1) // many - whole * at // many for at in range(many)))


def _cost(seen: ObservedSteps) -> StepCost:
    """Of the slowest rank, whose host has speed 1: collectives wait for it."""
    step = seen.step(seen.slowest)
    own = StepBreakdown(
        data=step.data + step.other, forward=step.forward, backward=step.backward, apply=step.apply
    )
    samples = max(1, round(seen.samples(seen.slowest)))
    return StepCost(samples=samples, step=own, ready=(), spread=0.0)


def _computing(seen: ObservedSteps) -> dict[int, float]:
    return {rank: seen.step(rank).compute for rank in seen.workers}


def _cluster(seen: ObservedSteps, seconds: dict[int, float], link: Link) -> Cluster:
    """Speeds are those of ``seconds`` over what the slowest rank took in the run."""
    own = seen.step(seen.slowest).compute
    if max(seconds.values()) < ALIKE * min(seconds.values()):
        alike = sum(seconds.values()) / len(seconds)
        seconds = dict.fromkeys(seconds, alike)
    hosts = [
        Host(name=f"rank-{rank}", link=link, inside=link, backend="gloo", device=Device(speed=own / one))
        for rank, one in seconds.items()
    ]
    return Cluster.of(hosts, cipher=CIPHER if seen.hosts > 1 else 0.0)


def _with_fitted_link(seen: ObservedSteps, bare: Setup) -> RebuiltRun:
    """The latency is that of the sums of evaluations, where they are recorded; bandwidth explains the rest."""
    delays, per_byte = _transfers(bare, 1.0, NO_TIME), _transfers(bare, 0.0, 1.0)
    coding = _transfers(bare, 0.0, NO_TIME)
    taken, delays = max(seen.transfer - coding, 1e-9), max(delays - coding, 1e-9)
    known = seen.small_exchange
    if known is None:
        part = 1.0 if seen.sent / delays < SHORT else 0.0
    else:
        part = known / _small_delays(bare) * delays / taken
    part = min(part, MOST_OF_IT)
    link = Link(latency=part * taken / delays, bandwidth=(per_byte - coding) / ((1 - part) * taken))
    fitted = replace(bare, cluster=bare.cluster.map_hosts(lambda host: replace(host, link=link, inside=link)))
    if not seen.knows_hidden:
        fitted = _slowed(fitted, seen.mean.communicate)
    return RebuiltRun(seen, fitted, delays, None if known is None else part)


def _slowed(setup: Setup, exposed: float) -> Setup:
    """With links so slow that backward leaves as much of the transfers as was recorded."""
    fast, slow = 1.0, 2.0
    while slow < SLOWEST and _exposed(setup, slow) < exposed:
        fast, slow = slow, 2 * slow
    for _ in range(HALVINGS):
        middle = (fast + slow) / 2
        fast, slow = (middle, slow) if _exposed(setup, middle) < exposed else (fast, middle)
    return with_slower(setup, transfers=slow)


def _exposed(setup: Setup, factor: float) -> float:
    return predict_step(with_slower(setup, transfers=factor)).breakdown.communicate


def _transfers(setup: Setup, latency: float, bandwidth: float) -> float:
    """Seconds a step of ranks that are all alike, so that none waits for another behind its backward."""
    link = Link(latency=latency, bandwidth=bandwidth)

    def alike(host: Host) -> Host:
        return replace(host, link=link, inside=link, device=Device())

    step = predict_step(replace(setup, cluster=setup.cluster.map_hosts(alike))).breakdown
    return step.communicate + step.hidden


def _small_delays(setup: Setup) -> float:
    delayed = Link(latency=1.0, bandwidth=NO_TIME)
    cluster = setup.cluster.map_hosts(lambda host: replace(host, link=delayed, inside=delayed))
    return max(1.0, AllReduceCosts(setup.collective, Topology(cluster)).price(SMALL, 4).seconds)

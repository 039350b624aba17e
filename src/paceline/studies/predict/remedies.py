"""What could be changed: each change is a request of its own, so that it is predicted before it is recommended."""

from collections.abc import Iterator

from paceline.clusters.catalogue import all_devices, find_network
from paceline.codecs import build_codec
from paceline.codecs.base import Identity
from paceline.collectives import NATIVE
from paceline.runtimes.settings import MOST_SERVERS
from paceline.studies.predict.compute import is_mixed, narrowest
from paceline.studies.predict.deployment import inside_name
from paceline.studies.predict.model import PacelineModel
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import Setting
from paceline.studies.predict.request import USUAL_NETWORK, PredictRequest

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
"""Usual ones, slowest first."""

BATCHES = (2, 4)
"""Times the batch."""

LOCAL_SGD = "local-sgd:period=16"
CODEC = "half"
COLLECTIVE = "halving-doubling"


def find_remedies(model: PacelineModel) -> Iterator[Setting]:
    """Changes that may make training faster; of one setting, what costs least comes first."""
    request = model.request
    if model.deployment.by_catalogue:
        yield from (("network", name) for name in _networks(request))
        yield from (("inside", name) for name in _inside(model))
    if request.served and 2 * request.servers <= MOST_SERVERS:
        yield "servers", str(2 * request.servers)
    plain = isinstance(build_codec(request.codec), Identity)
    yield "codec", CODEC if plain else "identity"
    if not request.served and request.collective == NATIVE:
        yield "collective", COLLECTIVE
    if len(request.built) == 1:
        yield from _strategies(model)
    yield from (("batch_size", str(times * model.batch // model.accumulate)) for times in BATCHES)


def find_roomier(model: PacelineModel) -> Iterator[Setting]:
    """Narrower numbers, then devices of the catalogue with more memory, the smallest first."""
    request, sheet = model.request, model.sheet
    if request.device is None or sheet is None:
        return
    narrow = narrowest(sheet)
    if narrow is not None and not is_mixed(request):
        yield "precision", narrow
    larger = (one for one in all_devices().values() if one.kind == sheet.kind and one.memory > sheet.memory)
    for other in sorted(larger, key=lambda one: one.memory) if request.memory is None else ():
        yield "device", other.name


def _strategies(model: PacelineModel) -> Iterator[Setting]:
    """All-reduce in place of servers; local SGD in place of an exchange at every step."""
    cost = model.cost(model.batch)
    if model.request.served:
        yield "strategy", "all-reduce"
    elif observe(model.request.built[0], 2, cost.step.compute, model.strategies[0]).cycle == 1:
        yield "strategy", LOCAL_SGD


def _networks(request: PredictRequest) -> Iterator[str]:
    """Those with more bandwidth than now; none where all workers are on one host."""
    if request.workers is not None and max(request.workers) <= (request.per_host or 1):
        return
    now = find_network(request.network or USUAL_NETWORK)
    for other in map(find_network, NETWORKS):
        if other.bandwidth > now.bandwidth:
            yield other.name


def _inside(model: PacelineModel) -> Iterator[str]:
    """Those that such devices can have, with more bandwidth than now."""
    if model.sheet is None or model.request.per_host in (None, 1):
        return
    linked = inside_name(model.request)
    now = 0.0 if linked is None else find_network(linked).bandwidth
    for name in model.sheet.inside:
        if find_network(name).bandwidth > now:
            yield name

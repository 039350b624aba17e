"""Steps with servers, where workers vary or do not wait for all.

Workers that wait for nobody spread over time: a step takes the worker's computing and its own exchange, or longer where
a link or a server that it shares is busy all the time (the asymptotic bounds of operational analysis; Denning and
Buzen, 1978).
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, log2

import torch

from paceline.costs.topology import Topology
from paceline.strategies.consistency import StalenessBound
from paceline.strategies.messages import HEADER
from paceline.strategies.parameter_server import ParameterServer
from paceline.studies.predict.closed import by_folding
from paceline.studies.predict.extremes import Lognormal, expected_maximum, mean_factor, sum_of
from paceline.studies.predict.few import Few, without_stragglers
from paceline.studies.predict.parts import Parts

CROWDED = 0.2
"""Part by which links carry less with every doubling of servers that stand beside workers: these slow down those, all
wait for all servers, and links are idle meanwhile. Found by simulation; servers on hosts of their own lose a tenth."""

Demand = Mapping[int, float]
"""By kind of worker: seconds for which a step of all workers of the kind keeps a link or a server busy."""


def by_arrivals(few: Few) -> Parts:
    """Synchronous rounds of workers that vary: gradients come in one after the other, the last one decides.

    The step of workers that do not vary is known exactly; added is by how much later the servers have everything.
    """
    still = by_folding(without_stragglers(few))
    computing = still.data + still.forward + still.backward
    own = mean_factor(few.jitter)
    even = without_stragglers(few)
    step = max(still.step + _carried(few) - _carried(even), own * computing)
    rest = step - own * computing
    communicate = max(0.0, min(still.communicate, rest - still.wait))
    parts = {kind: own * getattr(still, kind) for kind in ("data", "forward", "backward")}
    rate = still.rate * still.step / step
    return replace(still, **parts, communicate=communicate, wait=rest - communicate, rate=rate)


def _carried(few: Few) -> float:
    """When all gradients are through the links to the servers.

    A server's link is through when, after some worker has come, it and all who come later have been carried; the links
    of workers, when the last of all has sent its own; the memory of a server's host, when those on it have.
    """
    topology, arrivals = Topology(few.cluster, by_group=True), _arrivals(few)
    left = torch.arange(few.workers, 0, -1, dtype=torch.float64) / few.workers
    out, inside, shared = (dict[int, float]() for _ in range(3))
    for place, kind in enumerate(few.cluster.groups):
        for server, size in zip(few.places, _pushes(few), strict=True):
            crosses = topology.to_server(place, server).crosses if kind.workers else {}
            for link, often in crosses.items():
                near = {topology.out_of(place): out, topology.inside(place): inside}
                found = near.get(link, shared)
                found[link] = found.get(link, 0.0) + often * size / topology.capacities[link]
    ends = [float((arrivals + left * busy).max()) for busy in shared.values()]
    ends += [float(arrivals[-1]) + busy for busy in out.values()]
    for place, times in _computing(few).items():
        ends.append(expected_maximum([times]) + inside.get(topology.inside(place), 0.0))
    return max(ends)


def _computing(few: Few) -> dict[int, tuple[Lognormal, int]]:
    """How long workers of each kind compute, and how many they are; by the kind's place."""
    busy = few.cost.data + few.cost.forward + few.cost.backward
    places = (place for place, kind in enumerate(few.cluster.groups) if kind.workers)
    return {
        place: (sum_of([busy / pace], few.jitter), kind.workers)
        for place, pace, kind in zip(places, few.paces, few.groups, strict=True)
    }


def _arrivals(few: Few) -> torch.Tensor:
    """When workers of all kinds are through with computing, the first one first, as it is in the mean."""
    kinds = list(_computing(few).values())
    came = [
        time.quantiles((torch.arange(many, dtype=torch.float64) + 0.625) / (many + 0.25))
        for time, many in kinds
    ]
    arrivals = torch.cat(came).sort().values
    arrivals[-1] = expected_maximum(kinds)
    return arrivals


def by_capacity(few: Few) -> Parts:
    """Stale-synchronous and asynchronous training, where workers wait for few or for nobody."""
    kinds = [place for place, kind in enumerate(few.cluster.groups) if kind.workers]
    paces = dict(zip(kinds, few.paces, strict=True))
    bound = _staleness(few)
    held = {place: _held(few, bound, few.cluster.groups[place].workers) for place in kinds}
    busy = few.cost.data + few.cost.forward + few.cost.backward
    alone = {place: 1 / (held[place] * busy / paces[place] + _exchange(few, place)) for place in kinds}
    rates = _rates(alone, _demands(few, kinds), together=bound < inf)
    if bound < inf and len(set(few.paces)) > 1:
        first = min(held[place] * busy / paces[place] for place in kinds)
        slowest_rate = 1 / _lock_step(few, paces, alone, first)
        rates = {place: min(rate, slowest_rate) for place, rate in rates.items()}
    steps = {place: few.cluster.groups[place].workers * rates[place] for place in kinds}
    total = sum(steps.values())
    step, own = few.workers / total, mean_factor(few.jitter)
    scale = own * sum(steps[place] / total / paces[place] for place in kinds)
    exchange = step - scale * busy
    longer = sum(steps[place] / total * (held[place] - own) / paces[place] for place in kinds)
    # Who is held together with slower kinds waits for them, not for links.
    slowest = max(1 / rate for rate in alone.values()) if bound < inf else 0.0
    behind = sum(steps[place] / total * max(0.0, slowest - 1 / alone[place]) for place in kinds)
    wait = min(exchange, _answer(few) + longer * busy + behind)
    return Parts(
        data=few.cost.data * scale,
        forward=few.cost.forward * scale,
        backward=few.cost.backward * scale,
        apply=0.0,
        communicate=exchange - wait,
        wait=wait,
        hidden=0.0,
        sent=float(sum(_pushes(few))),
        rate=total * few.cost.samples,
    )


def _lock_step(few: Few, paces: Mapping[int, float], alone: Mapping[int, float], first: float) -> float:
    """How long a step takes where slower workers hold faster ones, who are let go all at once.

    So their models come together, ``first`` seconds of computing later their gradients go together, and neither way
    does anything for the links of the other. Or the slowest decides, whose model comes with all of theirs.
    """
    kinds, nothing = list(paces), [0] * len(few.places)
    faster = [place for place in kinds if paces[place] > min(paces.values())]
    pushes = max(_carries(few, kinds, _pushes(few), nothing), few.workers * _answer(few))
    pulls, theirs = (_carries(few, ones, nothing, _models(few)) for ones in (kinds, faster))
    return max(max(1 / rate for rate in alone.values()) + theirs, first + pushes + pulls)


def _carries(few: Few, kinds: list[int], pushes: list[int], models: list[int]) -> float:
    """Seconds until the links have carried such messages of all workers of these kinds."""
    return max(sum(demand.values()) for demand in _loads(few, kinds, pushes, models).values())


def _staleness(few: Few) -> float:
    """By how many steps a worker may be ahead of the slowest."""
    assert isinstance(few.strategy, ParameterServer)
    rule = few.strategy.rule
    return rule.staleness if isinstance(rule, StalenessBound) else 0.0


def _held(few: Few, bound: float, workers: int) -> float:
    """How many times as long as without jitter a step takes one of so many, with what the slowest holds it back.

    Who may be s steps ahead is held back no more than by a meeting every s + 1 steps.
    """
    if not few.jitter or bound == inf:
        return mean_factor(few.jitter)
    steps = int(bound) + 1
    return expected_maximum([(sum_of([1.0] * steps, few.jitter), workers)]) / steps


def _parts(few: Few) -> list[int]:
    """Bytes of the parameters that each server keeps."""
    elements, servers = few.setup.shape.size, len(few.places)
    width = few.setup.shape.dtype.itemsize
    return [width * (elements // servers + (rank < elements % servers)) for rank in range(servers)]


def _models(few: Few) -> list[int]:
    """Bytes of a message from each server."""
    return [HEADER + part for part in _parts(few)]


def _pushes(few: Few) -> list[int]:
    """Bytes of a message to each server."""
    shape = few.setup.shape
    return [HEADER + shape.compression.message(part, shape.dtype.itemsize) for part in _parts(few)]


def _coding(few: Few) -> float:
    """Seconds to encode a worker's gradients and to decode them."""
    compression = few.setup.shape.compression
    return sum(compression.encode(part) + compression.decode(part) for part in _parts(few))


def _update(few: Few, gradients: int) -> float:
    times = few.times
    return few.updating * (times.apply + times.aggregate * gradients) / len(few.places)


def _answer(few: Few) -> float:
    """How long a server takes to answer one gradient; where it updates by the clock, it answers at once."""
    return few.times.serve + (0.0 if getattr(few.strategy, "every", 0.0) else _update(few, 1))


def _exchange(few: Few, place: int) -> float:
    """A worker's push, the servers' answer and its way back, with nobody else under way."""
    ways = _one_way(few, place, _pushes(few)) + _one_way(few, place, _models(few))
    return ways + _coding(few) + _answer(few)


def _one_way(few: Few, place: int, sizes: list[int]) -> float:
    """How long messages of these sizes take to or from the servers."""
    host = few.cluster.groups[place].host
    near = far = slowest = latency = 0.0
    for size, server in zip(sizes, few.places, strict=True):
        if server == place:
            near += size
        else:
            other = few.cluster.groups[server].host.link
            far += size
            slowest = max(slowest, size / other.bandwidth)
            latency = max(latency, host.link.latency, other.latency)
    inside = host.inside.latency + near / host.inside.bandwidth if near else 0.0
    outside = latency + max(slowest, far / host.link.bandwidth)
    return max(inside, outside)


def _demands(few: Few, kinds: list[int]) -> list[Demand]:
    """What all workers of each kind ask of every link and every server in one step."""
    answers = {place: few.cluster.groups[place].workers * _answer(few) for place in kinds}
    beside = any(few.cluster.groups[place].workers for place in few.places)
    longer = 1 + CROWDED * log2(len(few.places)) if beside else 1.0
    loads = _loads(few, kinds, _pushes(few), _models(few)).values()
    return [*({place: longer * busy for place, busy in load.items()} for load in loads), answers]


def _loads(few: Few, kinds: list[int], pushes: list[int], models: list[int]) -> dict[int, dict[int, float]]:
    """What they ask of each link, with messages to and from the servers of so many bytes."""
    topology = Topology(few.cluster, by_group=True)
    found: dict[int, dict[int, float]] = {}
    for place in kinds:
        for push, model, server in zip(pushes, models, few.places, strict=True):
            ways = ((topology.to_server(place, server), push), (topology.from_server(server, place), model))
            for way, size in ways:
                for link, times in way.crosses.items():
                    demand = found.setdefault(link, {})
                    demand[place] = demand.get(place, 0.0) + times * size / topology.capacities[link]
    return found


def _rates(alone: Mapping[int, float], demands: list[Demand], together: bool) -> dict[int, float]:
    """Steps a second of a worker of each kind: as fast as alone, until what is shared is full (max-min fairness).

    Where workers are held ``together`` all go as fast as the slowest kind.
    """
    rates: dict[int, float] = {}
    while len(rates) < len(alone):
        waiting = [place for place in alone if place not in rates]
        level = min(alone[place] for place in waiting)
        full = {place for place in waiting if alone[place] <= level}
        for demand in demands:
            asked = sum(demand.get(place, 0.0) for place in waiting)
            room = 1 - sum(seconds * rates.get(place, 0.0) for place, seconds in demand.items())
            if asked and room / asked < level:
                level, full = room / asked, {place for place in waiting if demand.get(place)}
        rates |= dict.fromkeys(waiting if together else full, level)
    return rates

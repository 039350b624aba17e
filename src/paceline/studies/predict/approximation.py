"""The declared approximations, for workers that vary, or that do not wait for all others.

Workers that vary and wait for all others in collectives are as fast as the slowest: the expected maximum of their
times. A worker's step varies by a lognormal factor; the time between two exchanges is a sum of a few such, and taken to
be lognormal itself, with the same mean and variance (Fenton, 1960), which is exact for a single step.

Small runs with servers are simulated worker by worker; a large one would take minutes, so its step is bounded by what
links and servers can carry. Workers that wait for no other spread over time: a step takes the worker's computing and
its own exchange, or longer where a shared link or server is busy all the time (the asymptotic bounds of operational
analysis; Denning and Buzen, 1978). Against the simulation of every worker it is within 10 % with one server and within
25 % with several, rounds within 8 % (``docs/accuracy.md``; ``tests/studies/test_closed_path.py`` holds it to that).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import expm1, inf, log, log1p, log2, sqrt
from typing import NamedTuple

import torch

from paceline.costs.topology import Topology
from paceline.runtimes.virtual.shape import sizes_only
from paceline.strategies.base import server_slices
from paceline.strategies.messages import HEADER
from paceline.studies.predict.observe import updates_before_answering
from paceline.studies.predict.prediction import PredictedStep
from paceline.studies.predict.setup import Setup, mean_factor, slower, with_even_workers
from paceline.studies.predict.simulation import COMPUTING, StepSample, by_groups, mean_step, whole_cycles

POINTS = 4096
"""Of the integral of the expected maximum: enough for six digits."""
LEAST = 1e-9
"""The smallest spread: less changes no digit of an answer, and is lost where logarithms are subtracted."""
CROWDED = 0.2
"""Fraction by which links carry less with every doubling of servers beside workers: these slow down those, workers wait
for all servers, and links are idle meanwhile. Found by simulation; servers on hosts of their own lose a tenth."""

Demand = Mapping[int, float]
"""By group of workers: seconds for which a step of all workers of the group keeps a link or a server busy."""


class Lognormal(NamedTuple):
    mean_log: float
    spread: float


def sum_of(times: Sequence[float], jitter: float) -> Lognormal:
    """The sum of times that vary independently, each by a factor of this jitter."""
    total = sum(times)
    part = sum(time**2 for time in times) / total**2
    variance = log1p(part * expm1(jitter**2))
    return Lognormal(log(total) + jitter**2 / 2 - variance / 2, max(LEAST, sqrt(variance)))


def expected_maximum(groups: Sequence[tuple[Lognormal, int]]) -> float:
    """The mean of the largest of many independent times: the product of their distributions, integrated."""
    spread = max(time.spread for time, _ in groups)
    middle = max(time.mean_log for time, _ in groups)
    at = torch.linspace(middle - 9 * spread, middle + 12 * spread, POINTS, dtype=torch.float64)
    below = torch.zeros_like(at)
    for time, many in groups:
        below += many * torch.special.log_ndtr((at - time.mean_log) / time.spread)
    return float((torch.exp(below).diff() * torch.exp((at[1:] + at[:-1]) / 2)).sum())


def by_slowest(setup: Setup) -> PredictedStep:
    """The step of workers that vary and wait for all others in collectives.

    From one exchange to the next, the slowest takes the expected maximum, behind whose backward transfers are hidden; a
    worker's own time is the mean, and it waits for the rest.
    """
    groups = [(_stretches(steps), many) for steps, many in whole_cycles(setup, "groups")]
    longest = mean_factor(setup.jitter)
    if groups[0][0]:
        exchanges = range(len(groups[0][0]))
        still = sum(max(sum(found[at]) for found, _ in groups) for at in exchanges)
        times = [[(sum_of(found[at], setup.jitter), many) for found, many in groups] for at in exchanges]
        longest = sum(map(expected_maximum, times)) / still
    step = mean_step(whole_cycles(replace(setup, cost=slower(setup.cost, longest)), "groups"))
    own, parts = mean_factor(setup.jitter) / longest, step.breakdown
    shorter = {part: own * getattr(parts, part) for part in COMPUTING}
    return replace(step, breakdown=replace(parts, **shorter, wait=parts.wait + (1 - own) * parts.compute))


def _stretches(steps: Sequence[StepSample]) -> list[list[float]]:
    found: list[list[float]] = []
    current: list[float] = []
    for one in steps:
        current.append(one.computing - one.after)
        if one.exchanged:
            found.append(current)
            current = [one.after] if one.after else []
    # What follows the last exchange comes before the first one of the next cycle.
    if found:
        found[0] = current + found[0]
    return found


def approximate_rounds(setup: Setup) -> PredictedStep:
    """Synchronous rounds of workers that vary: longer by how much later the servers have all gradients."""
    even = with_even_workers(replace(setup, jitter=0.0))
    still = by_groups(even)
    parts, own = still.breakdown, mean_factor(setup.jitter)
    computing = parts.data + parts.forward + parts.backward
    later = ServedLoad(setup).carried() - ServedLoad(even).carried()
    seconds = max(still.seconds + later, own * computing)
    rest = seconds - own * computing
    communicate = max(0.0, min(parts.communicate, rest - parts.wait))
    longer = {part: own * getattr(parts, part) for part in ("data", "forward", "backward")}
    return replace(
        still,
        breakdown=replace(parts, **longer, communicate=communicate, wait=rest - communicate),
        rate=still.rate * still.seconds / seconds,
        path="approximation",
    )


def approximate_bounded(setup: Setup) -> PredictedStep:
    """Stale-synchronous and asynchronous training, where workers wait for few others or for none."""
    load, staleness = ServedLoad(setup), setup.program.staleness_bound
    assert staleness is not None, "what declares no bound is simulated"
    groups, paces, held, busy = load.groups, load.paces, load.held(staleness), load.busy
    alone = {place: 1 / (held[place] * busy / paces[place] + load.exchange(place)) for place in groups}
    together = staleness < inf
    rates = _shared_rates(alone, load.demands(), together)
    if together and len(set(paces.values())) > 1:
        first = min(held[place] * busy / paces[place] for place in groups)
        slowest_rate = 1 / load.lock_step(alone, first)
        rates = {place: min(rate, slowest_rate) for place, rate in rates.items()}
    steps = {place: load.count(place) * rates[place] for place in groups}
    total = sum(steps.values())
    seconds, own = load.cluster.workers / total, mean_factor(setup.jitter)
    scale = own * sum(steps[place] / total / paces[place] for place in groups)
    exchange = seconds - scale * busy
    longer = sum(steps[place] / total * (held[place] - own) / paces[place] for place in groups)
    # Workers that are held together with slower groups wait for them, not for links.
    slowest = max(1 / rate for rate in alone.values()) if together else 0.0
    behind = sum(steps[place] / total * max(0.0, slowest - 1 / alone[place]) for place in groups)
    wait = min(exchange, load.answer + longer * busy + behind)
    return PredictedStep(
        breakdown=replace(setup.cost.step * scale, apply=0.0, communicate=exchange - wait, wait=wait),
        sent=float(sum(load.pushes)),
        rate=total * setup.cost.samples,
        path="approximation",
    )


class ServedLoad:
    """What the workers of a setup ask of its links and servers in one step; a group of hosts goes by its index."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup = setup.apart()
        step, times = setup.cost.step, setup.times
        self.cluster, self.servers = setup.cluster, setup.server_groups
        self.topology = Topology(self.cluster, by_group=True)
        self.groups = [place for place, group in enumerate(self.cluster.groups) if group.workers]
        self.paces = dict(zip(self.groups, setup.paces, strict=True))
        self.busy = step.data + step.forward + step.backward
        vector = sizes_only(setup.shape.size, setup.shape.dtype)
        self.shards = [shard.nbytes for shard in server_slices(vector, setup.servers)]
        self.models = [HEADER + shard for shard in self.shards]
        """Bytes of a message from each server."""
        compression, width = setup.shape.compression, setup.shape.dtype.itemsize
        self.pushes = [HEADER + compression.message(shard, width) for shard in self.shards]
        """Bytes of a message to each server."""
        self.answer = times.serve
        """Seconds that a server takes to answer one gradient; where it updates by the clock, it answers at once."""
        if updates_before_answering(setup.program):
            self.answer += setup.updating * (step.apply + times.aggregate) / setup.servers

    def count(self, place: int) -> int:
        return self.cluster.groups[place].workers

    def held(self, staleness: float) -> dict[int, float]:
        """How many times as long as even a step takes: a lead of s steps is like a barrier every s + 1 steps."""
        jitter = self.setup.jitter
        if not jitter or staleness == inf:
            return dict.fromkeys(self.groups, mean_factor(jitter))
        steps = int(staleness) + 1
        time = sum_of([1.0] * steps, jitter)
        return {place: expected_maximum([(time, self.count(place))]) / steps for place in self.groups}

    def exchange(self, place: int) -> float:
        compression = self.setup.shape.compression
        coding = sum(map(compression.coding, self.shards))
        return self._one_way(place, self.pushes) + self._one_way(place, self.models) + coding + self.answer

    def _one_way(self, place: int, sizes: list[int]) -> float:
        host = self.cluster.groups[place].host
        near = far = slowest = latency = 0.0
        for size, server in zip(sizes, self.servers, strict=True):
            if server == place:
                near += size
            else:
                other = self.cluster.groups[server].host.link
                far += size
                slowest = max(slowest, size / other.bandwidth)
                latency = max(latency, host.link.latency, other.latency)
        inside = host.inside.latency + near / host.inside.bandwidth if near else 0.0
        return max(inside, latency + max(slowest, far / host.link.bandwidth))

    def demands(self) -> list[Demand]:
        answers = {place: self.count(place) * self.answer for place in self.groups}
        beside = any(self.count(place) for place in self.servers)
        longer = 1 + CROWDED * log2(len(self.servers)) if beside else 1.0
        loads = self._loads(self.groups, self.pushes, self.models).values()
        return [*({place: longer * busy for place, busy in load.items()} for load in loads), answers]

    def lock_step(self, alone: Mapping[int, float], first: float) -> float:
        """Seconds of a step where slower workers hold faster ones, which are released all at once.

        So their models arrive together, ``first`` seconds of computing later their gradients leave together, and
        neither direction is used while the other is. Or the slowest decides, whose model comes with all of theirs.
        """
        nothing = [0] * len(self.servers)
        slow = min(self.paces.values())
        faster = [place for place in self.groups if self.paces[place] > slow]

        def carry(groups: list[int], pushes: list[int], models: list[int]) -> float:
            return max(sum(demand.values()) for demand in self._loads(groups, pushes, models).values())

        pushes = max(carry(self.groups, self.pushes, nothing), self.cluster.workers * self.answer)
        pulls, theirs = (carry(ones, nothing, self.models) for ones in (self.groups, faster))
        return max(max(1 / rate for rate in alone.values()) + theirs, first + pushes + pulls)

    def _loads(self, groups: list[int], pushes: list[int], models: list[int]) -> dict[int, dict[int, float]]:
        """Seconds for which messages of these sizes keep each link busy, by group of workers."""
        found: dict[int, dict[int, float]] = {}
        for place in groups:
            for push, model, server in zip(pushes, models, self.servers, strict=True):
                there, back = self.topology.to_server(place, server), self.topology.from_server(server, place)
                for route, size in ((there, push), (back, model)):
                    for link, times in route.crosses.items():
                        demand = found.setdefault(link, {})
                        seconds = times * size / self.topology.capacities[link]
                        demand[place] = demand.get(place, 0.0) + seconds
        return found

    def carried(self) -> float:
        """When all gradients of a round are through the links to the servers.

        A server's link is through when, after some worker's gradient has arrived, it and all later ones have been
        carried; the links of workers, when the last of all has sent its own; the memory of a server's host, when those
        on it have.
        """
        jitter, workers, topology = self.setup.jitter, self.cluster.workers, self.topology
        computing = {
            place: (sum_of([self.busy / pace], jitter), self.count(place))
            for place, pace in self.paces.items()
        }
        arrivals = _arrivals(list(computing.values()))
        left = torch.arange(workers, 0, -1, dtype=torch.float64) / workers
        loads = self._loads(self.groups, self.pushes, [0] * len(self.servers))
        busy = {link: sum(demand.values()) for link, demand in loads.items()}
        out = [busy.pop(topology.out_of(place), None) for place in self.groups]
        inside = {place: busy.pop(topology.inside(place), 0.0) for place in self.groups}
        ends = [float((arrivals + left * seconds).max()) for seconds in busy.values()]
        ends += [float(arrivals[-1]) + seconds for seconds in out if seconds is not None]
        ends += [expected_maximum([times]) + inside[place] for place, times in computing.items()]
        return max(ends)


def _arrivals(groups: Sequence[tuple[Lognormal, int]]) -> torch.Tensor:
    """When workers of all groups have computed, in order, as it is in the mean."""
    times = []
    for time, many in groups:
        parts = (torch.arange(many, dtype=torch.float64) + 0.625) / (many + 0.25)
        times.append(torch.exp(time.mean_log + time.spread * torch.special.ndtri(parts)))
    arrivals = torch.cat(times).sort().values
    arrivals[-1] = expected_maximum(groups)
    return arrivals


def _shared_rates(alone: Mapping[int, float], demands: list[Demand], together: bool) -> dict[int, float]:
    """Steps a second of a worker of each group, in max-min fairness; ``together``: all as fast as the slowest."""
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

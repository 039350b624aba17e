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

from collections.abc import Sequence
from dataclasses import replace
from math import expm1, inf, log, log1p, log2, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from paceline.costs.topology import Topology
from paceline.runtimes.virtual.served_coding import served_coding
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

Array = npt.NDArray[Any]


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
    together, held = staleness < inf, load.held(staleness)
    own, computing = mean_factor(setup.jitter), held * load.computing
    alone = 1 / (computing + load.exchange())
    rates = _shared_rates(alone, load.demands(), together)
    if together and len({*setup.paces}) > 1:
        rates = np.minimum(rates, 1 / load.lock_step(alone, computing.min()))
    if not staleness and setup.coding.compresses:
        rates = np.full_like(rates, 1 / load.coded_round(computing))
    steps = load.counts * rates
    shares, seconds = steps / steps.sum(), float(load.counts.sum() / steps.sum())
    busy = float(shares @ load.computing)
    exchange = seconds - own * busy
    longer = float(shares @ (computing - own * load.computing))
    # Workers that are held together with slower groups wait for them, not for links.
    behind = float(shares @ (1 / alone.min() - 1 / alone)) if together else 0.0
    wait = min(exchange, load.answer + longer + behind)
    scale = own * float(shares @ (1 / load.paces))
    return PredictedStep(
        breakdown=replace(setup.cost.step * scale, apply=0.0, communicate=exchange - wait, wait=wait),
        sent=float(load.pushes.sum()),
        rate=float(steps.sum()) * setup.cost.samples,
        path="approximation",
    )


class ServedLoad:
    """What the workers of a setup ask of its links and servers in a step; arrays are by group of hosts with workers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup = setup.apart()
        self.hosts = [group.host for group in setup.cluster.groups]
        self.topology = Topology(setup.cluster, by_group=True)
        self.places = [place for place, host in enumerate(self.hosts) if host.workers]
        self.counts = np.array([setup.cluster.groups[place].workers for place in self.places])
        self.paces = np.array(setup.paces)
        step = setup.cost.step
        self.computing = (step.data + step.forward + step.backward) / self.paces
        vector = sizes_only(setup.shape.size, setup.shape.dtype)
        shards = [shard.nbytes for shard in server_slices(vector, setup.servers)]
        coded = served_coding(setup.coding, setup.shape.layout, setup.shape.dtype, setup.servers)
        self.models = HEADER + np.array([one.model.size for one in coded] or shards)
        self.pushes = HEADER + np.array([one.push.size for one in coded] or shards)
        """Bytes of a message from each server, and to each."""
        self.coding = sum(one.push.encode + one.model.decode for one in coded) / self.paces
        self.take = setup.times.serve + max((one.push.decode for one in coded), default=0.0)
        self.give = max((one.model.encode for one in coded), default=0.0)
        """Seconds that a server takes for a message that it receives, and for one that it sends."""
        self.answer = self.take + self.give
        """Seconds that a server takes to answer one gradient; where it updates by the clock, it answers at once."""
        if updates_before_answering(setup.program):
            self.answer += setup.updating * (step.apply + setup.times.aggregate) / setup.servers

    def held(self, staleness: float) -> Array:
        """How many times as long as even a step takes: a lead of s steps is like a barrier every s + 1 steps."""
        jitter = self.setup.jitter
        if not jitter or staleness == inf:
            return np.full(len(self.places), mean_factor(jitter))
        steps = int(staleness) + 1
        time = sum_of([1.0] * steps, jitter)
        return np.array([expected_maximum([(time, many)]) / steps for many in self.counts.tolist()])

    def exchange(self) -> Array:
        return self._there_and_back() + self.coding + self.answer

    def _there_and_back(self) -> Array:
        return np.array(
            [sum(self._one_way(at, sizes) for sizes in (self.pushes, self.models)) for at in self.places]
        )

    def _one_way(self, place: int, sizes: Array) -> float:
        host = self.hosts[place]
        near = far = slowest = latency = 0.0
        for size, server in zip(sizes, self.setup.server_groups, strict=True):
            if server == place:
                near += size
            else:
                other = self.hosts[server].link
                far += size
                slowest = max(slowest, size / other.bandwidth)
                latency = max(latency, host.link.latency, other.latency)
        inside = host.inside.latency + near / host.inside.bandwidth if near else 0.0
        return max(inside, latency + max(slowest, far / host.link.bandwidth))

    def demands(self) -> Array:
        """Seconds for which a step of all workers of each group keeps each link busy, and in the last row a server."""
        beside = any(self.hosts[place].workers for place in self.setup.server_groups)
        longer = 1 + CROWDED * log2(self.setup.servers) if beside else 1.0
        return np.vstack([longer * self._loads(self.pushes, self.models), self.counts * self.answer])

    def lock_step(self, alone: Array, first: float) -> float:
        """Seconds of a step where slower workers hold faster ones, which are released all at once.

        So their models arrive together, ``first`` seconds of computing later their gradients leave together, and
        neither direction is used while the other is. Or the slowest decides, whose model comes with all of theirs.
        """
        leaving, arriving = (
            self._loads(self.pushes, 0 * self.models),
            self._loads(0 * self.pushes, self.models),
        )
        faster = self.paces > self.paces.min()
        pushes = max(leaving.sum(1).max(), self.counts.sum() * self.answer)
        theirs = arriving[:, faster].sum(1).max()
        return float(max(1 / alone.min() + theirs, first + pushes + arriving.sum(1).max()))

    def coded_round(self, computing: Array) -> float:
        """Seconds of a synchronous round in which servers decode one gradient and encode one answer after the other.

        Answers that leave one after the other arrive so, and so do the next gradients. Where the links take longer than
        the servers, messages share them and go both ways in turns, but for the head start of those that leave first.
        All of it hides how much workers vary.
        """
        setup, workers = self.setup, int(self.counts.sum())
        back, there = (
            self._loads(*sizes).sum(1).max() / workers
            for sizes in ((0 * self.pushes, self.models), (self.pushes, 0 * self.models))
        )
        arriving = max(self.take, there)
        between = max(self.give, arriving)
        if self.give < back:
            ahead = self.give * max(1.0, log(back / self.give)) if self.give else 0.0
            between = back + arriving - min(arriving, ahead)
        update = setup.updating * (setup.cost.step.apply + setup.times.aggregate * workers) / setup.servers
        alone = self._there_and_back() + self.coding + self.take + self.give
        slowest = mean_factor(setup.jitter) * self.computing
        in_turns = (slowest + alone).max() + (workers - 1) * between
        busy = workers * (self.take + self.give)
        return float(update + max(in_turns, busy, (computing + alone).max()))

    def _loads(self, pushes: Array, models: Array) -> Array:
        """Seconds for which messages of these sizes keep each link busy, a row each, by group of workers."""
        found = np.zeros((len(self.topology.capacities), len(self.places)))
        for group, place in enumerate(self.places):
            for push, model, server in zip(pushes, models, self.setup.server_groups, strict=True):
                there, back = self.topology.to_server(place, server), self.topology.from_server(server, place)
                for route, size in ((there, push), (back, model)):
                    for link, times in route.crosses.items():
                        found[link, group] += times * size / self.topology.capacities[link]
        return found

    def carried(self) -> float:
        """When all gradients of a round are through the links to the servers.

        A server's link is through when, after some worker's gradient has arrived, it and all later ones have been
        carried; the links of workers, when the last of all has sent its own; the memory of a server's host, when those
        on it have.
        """
        workers, jitter = int(self.counts.sum()), self.setup.jitter
        times = [sum_of([one], jitter) for one in self.computing.tolist()]
        computing = list(zip(times, self.counts.tolist(), strict=True))
        arrivals = _arrivals(computing)
        left = torch.arange(workers, 0, -1, dtype=torch.float64) / workers
        busy = self._loads(self.pushes, 0 * self.models).sum(1)
        out, inside = ([link(place) for place in self.places] for link in (Topology.out_of, Topology.inside))
        ends = [
            float((arrivals + left * seconds).max()) for seconds in np.delete(busy, out + inside).tolist()
        ]
        ends += [float(arrivals[-1] + busy[out].max())]
        ends += [expected_maximum([one]) + busy[link] for one, link in zip(computing, inside, strict=True)]
        return float(max(ends))


def _arrivals(groups: Sequence[tuple[Lognormal, int]]) -> torch.Tensor:
    """When workers of all groups have computed, in order, as it is in the mean."""
    times = []
    for time, many in groups:
        parts = (torch.arange(many, dtype=torch.float64) + 0.625) / (many + 0.25)
        times.append(torch.exp(time.mean_log + time.spread * torch.special.ndtri(parts)))
    arrivals = torch.cat(times).sort().values
    arrivals[-1] = expected_maximum(groups)
    return arrivals


def _shared_rates(alone: Array, demands: Array, together: bool) -> Array:
    """Steps a second of a worker of each group, in max-min fairness; ``together``: all as fast as the slowest."""
    rates, waiting = np.zeros(len(alone)), np.ones(len(alone), dtype=bool)
    while waiting.any():
        level = alone[waiting].min()
        full = waiting & (alone <= level)
        asked, room = demands[:, waiting].sum(1), 1 - demands @ rates
        most = np.divide(room, asked, out=np.full(len(asked), inf), where=asked > 0)
        if most.min() < level:
            level, full = most.min(), waiting & (demands[most.argmin()] > 0)
        full = waiting if together else full
        rates[full] = level
        waiting = waiting & ~full
    return rates

"""What a schedule costs when it is carried out: every rank goes on as soon as it has what it waits for.

A message leaves when its sender has come to it, its receiver has posted the receive, one round ahead, and the messages
before it on its links are through. Rings are timed by this recurrence exactly, whatever the links. Of other schedules,
those of few messages are played message by message (``played``). Beyond that the same recurrence times them, with the
links shared equally among messages that wait for the same (``rounds.paces``): an approximation, whose error
``tests/costs/test_uneven_prices.py`` states. What was worked out for the same links, or hosts, is kept.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import ceil, inf, log2

import numpy as np

from paceline.clusters.cluster import Cluster, HostGroup
from paceline.collectives import build_schedule, find_schedule
from paceline.collectives.execute import RankPlan
from paceline.collectives.schedule import Ranks, Schedule
from paceline.costs.played import parts_of, play_parts
from paceline.costs.prices import FREE, Price, Stage
from paceline.costs.rounds import Links, Numbers, Wave, carried, counts_of, outline_of, plan
from paceline.costs.topology import HostRow, Topology

PLAYED = 256
"""Messages up to which a schedule is played."""

MOST_HOSTS = 512
"""Hosts of a ring that are timed; of more, each stands for some neighbours that are alike."""

MOST_RANKS = 4_096
"""Ranks of other schedules that are timed; the price of more follows from those of fewer."""

NEAR = 1e-11
"""Part by which times may differ that are the same."""

State = tuple[Numbers, Numbers, Numbers]
"""When ranks begin their next round, when they began this one, and when what they last received was there."""


class SchedulePrices:
    """Prices all-reduces by one schedule on one cluster. What does not depend on the size is worked out once."""

    def __init__(self, collective: str, topology: Topology, most_messages: int = PLAYED) -> None:
        """``most_messages`` is up to how many are played one by one."""
        self._collective, self._topology = collective, topology
        self._plays = 0 if collective == "ring" else most_messages
        self._rows = tuple(topology.rows)
        self._timer = timer_for(find_schedule(collective), self._rows)

    def price(self, size: int, element: int) -> Price:
        """The price of ``size`` bytes in whole elements, in the segments in which it is carried out."""
        timer = self._timer
        if not timer.outline.rounds or not size:
            return FREE
        segments = timer.outline.segments(size)
        messages = segments * sum(turn.times * len(turn.sources) for turn in timer.outline.rounds)
        if messages <= self._plays:
            seconds = _played(self._collective, self._rows, size, element, segments)
        else:
            seconds = self._timed(size, element, segments)
        return timer.priced(self._topology, seconds, size / timer.outline.chunks)

    def mean_traffic(self, size: int) -> int:
        """Bytes that a rank sends, and receives, in the mean."""
        outline = self._timer.outline
        chunks = sum(turn.times * int(turn.lengths.sum()) for turn in outline.rounds)
        return chunks * size // (outline.chunks * outline.workers)

    def _timed(self, size: int, element: int, segments: int) -> float:
        workers = self._timer.outline.workers
        if workers <= MOST_RANKS:
            return self._timer.seconds(size, element, segments)
        return _extrapolated(self._collective, self._rows, workers, size, element, segments)


@lru_cache(maxsize=1024)
def _played(collective: str, rows: tuple[HostRow, ...], size: int, element: int, segments: int) -> float:
    """Message by message, with every host by itself."""
    topology = Topology(Cluster(groups=tuple(HostGroup(row.host, row.hosts) for row in rows)))
    parts = _parts(collective, tuple(topology.workers), size // element, segments)
    return play_parts(parts, topology, element)


@lru_cache(maxsize=32)
def _parts(collective: str, hosts: tuple[int, ...], length: int, segments: int) -> Sequence[RankPlan]:
    """What each rank does, whatever the links."""
    return parts_of(build_schedule(collective, hosts), length, segments)


def _extrapolated(
    collective: str, rows: tuple[HostRow, ...], workers: int, size: int, element: int, segments: int
) -> float:
    """From two smaller clusters: a master's price grows with the ranks, all others' with their logarithm."""
    hosts = sum(row.hosts for row in rows)
    counts, prices, halvings = [], [], ceil(log2(workers / MOST_RANKS))
    for times in (halvings + 1, halvings):
        timer = timer_for(find_schedule(collective), tuple(thinned(rows, hosts >> times)))
        counts.append(timer.outline.workers)
        prices.append(timer.seconds(size, element, segments))
    grows = float if collective == "one-to-all" else log2
    slope = (prices[1] - prices[0]) / (grows(counts[1]) - grows(counts[0]))
    return prices[1] + slope * (grows(workers) - grows(counts[1]))


@lru_cache(maxsize=64)
def timer_for(
    outline: Callable[[Ranks], Schedule], rows: tuple[HostRow, ...], *, hides: bool = False
) -> "Timer":
    """The same timer for the same schedule on the same links: it knows what it was asked before."""
    return Timer(outline, rows, hides=hides)


class Timer:
    """The recurrence, for one schedule on one cluster."""

    def __init__(
        self, outline: Callable[[Ranks], Schedule], rows: Sequence[HostRow], *, hides: bool = False
    ) -> None:
        """``hides`` is of a backend that reduces one piece of a message while the next one travels."""
        self._hides, self._rows = hides, rows
        self.outline = outline_of(outline, counts_of(rows))
        hosts = sum(row.hosts for row in rows)
        self._each = 1.0
        if any(turn.times > 1 for turn in self.outline.rounds) and hosts > MOST_HOSTS:
            self._rows = thinned(rows, MOST_HOSTS)
            self.outline = outline_of(outline, counts_of(rows), counts_of(self._rows))
            self._each = hosts / sum(row.hosts for row in self._rows)
        self._counts = counts_of(self._rows)
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, size: int, element: int = 1, segments: int = 1) -> float:
        """Seconds of ``size`` bytes in whole elements, in so many segments one behind the other."""
        if not self.outline.rounds or not size:
            return 0.0
        chunk = element * -(-size // (element * self.outline.chunks * segments))
        if (chunk, segments) not in self._known:
            self._known[chunk, segments] = self._run(chunk, segments)
        return self._known[chunk, segments]

    def _run(self, chunk: int, segments: int) -> float:
        clock = _Clock(self._links, self._hides, chunk, self._each)
        for wave, level, full in plan(self.outline, self._counts, segments):
            (clock.go_round if wave.times > 1 else clock.go_on)(wave, level, full)
        return float(clock.now.max())

    @cached_property
    def _links(self) -> Links:
        return Links.of(self._rows)

    def priced(self, topology: Topology, seconds: float, chunk: float) -> Price:
        """A price of one stage: among other traffic its bytes share the links, and what is left is a delay."""
        unit, crosses = self._carried
        slowest = max(times / topology.capacities[link] for link, times in crosses.items())
        delay = max(0.0, seconds - unit * chunk * slowest)
        return Price((Stage(delay, unit * chunk, crosses, seconds),), seconds)

    @cached_property
    def _carried(self) -> tuple[float, dict[int, float]]:
        """Chunks that the idlest link carries, and how many times as many each link does."""
        numbers, first = (Topology.out_of, Topology.into, Topology.inside), 0
        load, busiest = carried(self.outline, self._counts), dict[int, float]()
        for row in self._rows:
            mine = load[:, first : first + row.hosts]
            first += row.hosts
            last = min(row.hosts, len(row.places)) - 1
            # The last host that the topology tells apart stands for all that follow.
            each = np.column_stack([mine[:, :last], mine[:, last:].max(axis=1)])
            for number, chunks in zip(numbers, each.tolist(), strict=True):
                for place, many in zip(row.places, chunks, strict=False):
                    busiest[number(place)] = max(busiest.get(number(place), 0.0), many)
        unit = min(chunks for chunks in busiest.values() if chunks)
        return unit, {link: chunks / unit for link, chunks in busiest.items() if chunks}


class _Clock:
    """The times of all ranks and links, from wave to wave."""

    def __init__(self, links: Links, hides: bool, chunk: float, each: float) -> None:
        """``each`` is for how many hosts of a ring one stands."""
        self._links, self._hides, self._each = links, hides, each
        self._chunk_seconds, self._reduce = chunk * links.byte_seconds, chunk * links.reduce
        self.now = np.zeros(len(links.reduce))
        """When each rank begins its next round."""
        self._before = np.zeros_like(self.now)
        """When it began the one before, and posted what it receives in the next."""
        many = len(links.latency)
        self._level = np.zeros(many, np.int64)
        self._ends, self._free = np.zeros(many), np.zeros(many)
        """When the messages of the present level, and of those before it, are through each link."""
        self._begun = np.zeros(many)
        """When the first message of the present level began."""

    def go_on(self, wave: Wave, level: Ranks, full: Numbers) -> None:
        """One wave; both links of each message are full with so many chunks of all messages of its level."""
        paces = self._chunk_seconds[wave.links]
        busy = full * paces
        for link in wave.links:
            later = self._level[link] < level
            new = link[later]
            self._free[new], self._level[new], self._begun[new] = self._ends[new], level[later], inf
        ready = np.maximum(self.now[wave.sources], self._before[wave.targets])
        ready += self._links.latency[wave.links].max(axis=0)
        begun = np.maximum(ready, self._free[wave.links].max(axis=0))
        for link in wave.links:
            np.minimum.at(self._begun, link, begun)
        alone = wave.chunks * paces.max(axis=0)
        ended = np.maximum(begun + alone, (self._begun[wave.links] + busy).max(axis=0))
        for link in wave.links:
            np.maximum.at(self._ends, link, ended)
        targets = wave.targets[wave.firsts]
        for ones in (wave.sources, targets):
            self._before[ones] = self.now[ones]
        carry = np.maximum.reduceat(busy.max(axis=0), wave.firsts)
        taken = np.maximum.reduceat(ended, wave.firsts) + self._reducing(wave, carry)
        self.now[targets] = np.maximum(self.now[targets], taken)

    def go_round(self, wave: Wave, level: Ranks, full: Numbers) -> None:  # noqa: ARG002
        """Many like waves in which every rank sends to the next; where all times grow alike, the rest is known.

        What goes round a ring of f times as many hosts in f times as many rounds takes f times as long.
        """
        rounds, least = max(1, round(wave.times / self._each)), self.now[wave.targets].min()
        ranks, sources = wave.targets, np.searchsorted(wave.targets, wave.sources)
        carry = (full * self._chunk_seconds[wave.links]).max(axis=0)
        reducing = self._reducing(wave, carry)
        latency = self._links.latency[wave.links].max(axis=0)
        passing = self._links.passing[wave.links].max(axis=0)
        begun = (self.now[ranks], self._before[ranks], self._ends[wave.links].max(axis=0))
        state = _scaled(begun, least, 1 / self._each)
        looked_at, done, kept = {1, 2, 4, 8, 16, 32}, 0, (0, state)
        while done < rounds:
            now, before, there = state
            ready = np.maximum(now[sources] + passing, before + latency)
            arrived = np.maximum(ready, there) + carry
            state = (np.maximum(arrived + reducing, now), now, arrived)
            done += 1
            if looked_at and (done in looked_at or done % len(ranks) == 0):
                lag, grown = done - kept[0], _grown(kept[1], state)
                kept = (done, state)
                if grown is not None:
                    jumps, looked_at = (rounds - done) // lag, set()
                    state = tuple(part + jumps * grown for part in state)  # type: ignore[assignment]
                    done += jumps * lag
        state = _scaled(state, least, wave.times / rounds)
        self.now[ranks], self._before[ranks] = state[:2]
        for link in wave.links:
            np.maximum.at(self._ends, link, state[2])

    def _reducing(self, wave: Wave, carry: Numbers) -> Numbers:
        """How long each target still reduces when its last message is there.

        Messages of several sources arrive together, for they share the link. Pieces of one message arrive one after
        the other, and each is reduced while the next one travels.
        """
        seconds = self._reduce[wave.targets[wave.firsts]]
        reduced = np.add.reduceat(wave.reduced, wave.firsts)
        if self._hides:
            return np.maximum(0.0, seconds * reduced - carry)
        last = seconds * np.add.reduceat(wave.largest, wave.firsts)
        chunks = np.add.reduceat(wave.chunks, wave.firsts)
        later = carry * (reduced - np.add.reduceat(wave.largest, wave.firsts)) / chunks
        rest: Numbers = np.maximum(last, seconds * reduced - later)
        return rest


def _scaled(state: State, least: float, factor: float) -> State:
    """Times so many times as far from the first one."""
    now, before, there = (least + factor * (part - least) for part in state)
    return now, before, there


def _grown(before: State, after: State) -> float | None:
    """By how much all times grew, if they grew by the same."""
    grown = [new - old for old, new in zip(before, after, strict=True)]
    low, high = min(float(part.min()) for part in grown), max(float(part.max()) for part in grown)
    return high if high - low <= NEAR * float(after[0].max()) else None


def thinned(rows: Sequence[HostRow], most: int) -> list[HostRow]:
    """About so many hosts instead of all; where a row cannot be made as much shorter, its latencies count in part."""
    hosts = sum(row.hosts for row in rows)
    counts = [max(1, round(row.hosts * most / hosts)) for row in rows]
    factor = hosts / sum(counts)
    return [
        row._replace(hosts=count, part=row.hosts / (count * factor))
        for row, count in zip(rows, counts, strict=True)
    ]

"""How long a schedule takes when it is executed: every rank goes on as soon as it has what it waits for.

A message leaves when its sender has reached it, its receiver has posted the receive, one round ahead, and the messages
before it on its links are through. Rings are timed by this recurrence exactly, whatever the links. Of other schedules,
those of few messages are simulated message by message (``message_simulation``). Beyond that the same recurrence times
them, with the links shared equally among messages that wait for the same (``waves.plan``): an approximation, whose
error ``tests/costs/test_uneven_prices.py`` states. What was worked out for the same links, or hosts, is kept.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from math import ceil, inf, log2

import numpy as np

from paceline.clusters.cluster import Cluster, HostGroup, Link
from paceline.collectives import algorithms, build_schedule, find_schedule
from paceline.collectives.schedule import Ranks, Schedule
from paceline.costs.message_simulation import simulate_messages
from paceline.costs.topology import HostRow, Topology
from paceline.costs.waves import Numbers, Wave, carried_chunks, counts_of, plan, schedule_among

EXACT = 256
"""Messages up to which a schedule other than a ring is simulated message by message."""
MOST_HOSTS = 512
"""Hosts of a ring that are timed; of more, each stands for some neighbours that are alike."""
MOST_RANKS = 4_096
"""Ranks of other schedules that are timed; the price of more follows from those of fewer."""
NEAR = 1e-11
"""Relative difference up to which two times count as equal."""

HostRows = tuple[HostRow, ...]
ScheduleFunction = Callable[[Ranks], Schedule]


def schedule_seconds(
    collective: str, rows: HostRows, size: int, element: int, *, exact: int = EXACT
) -> float:
    """Seconds of an all-reduce of ``size`` bytes in whole elements, in the segments in which it is executed."""
    timer = timer_for(priced_as(collective), rows)
    schedule = timer.schedule
    segments = schedule.segments(size)
    messages = segments * sum(turn.times * len(turn.sources) for turn in schedule.rounds)
    if collective != "ring" and messages <= exact:
        return _simulated(collective, rows, size, element, segments)
    if schedule.workers <= MOST_RANKS or any(turn.times > 1 for turn in schedule.rounds):
        return timer.seconds(size, element, segments)
    return _extrapolated(collective, rows, schedule.workers, size, element, segments)


@lru_cache(maxsize=1024)
def _simulated(collective: str, rows: HostRows, size: int, element: int, segments: int) -> float:
    topology = Topology(Cluster(groups=tuple(HostGroup(row.host, row.hosts) for row in rows)))
    return simulate_messages(build_schedule(collective, topology.workers), topology, size, element, segments)


def _extrapolated(
    collective: str, rows: HostRows, workers: int, size: int, element: int, segments: int
) -> float:
    """From two smaller clusters: a master's price grows with the ranks, all others' with their logarithm."""
    hosts = sum(row.hosts for row in rows)
    counts, prices, halvings = [], [], ceil(log2(workers / MOST_RANKS))
    for times in (halvings + 1, halvings):
        timer = timer_for(find_schedule(collective), thinned(rows, hosts >> times))
        counts.append(timer.schedule.workers)
        prices.append(timer.seconds(size, element, segments))
    grows = float if collective == "one-to-all" else log2
    slope = (prices[1] - prices[0]) / (grows(counts[1]) - grows(counts[0]))
    return prices[1] + slope * (grows(workers) - grows(counts[1]))


def priced_as(collective: str) -> ScheduleFunction:
    """What takes as long, with fewer rounds to look at where many are alike."""
    return algorithms.pairwise_alike if collective == "pairwise" else find_schedule(collective)


@lru_cache(maxsize=64)
def timer_for(function: ScheduleFunction, rows: HostRows, *, hides: bool = False) -> "ScheduleTimer":
    return ScheduleTimer(function, rows, hides=hides)


class ScheduleTimer:
    def __init__(self, function: ScheduleFunction, rows: HostRows, *, hides: bool = False) -> None:
        """``hides`` is of a backend that reduces one piece of a message while the next one travels."""
        self._hides, self._rows = hides, rows
        self.schedule = schedule_among(function, counts_of(rows))
        hosts = sum(row.hosts for row in rows)
        self._each = 1.0
        if any(turn.times > 1 for turn in self.schedule.rounds) and hosts > MOST_HOSTS:
            self._rows = thinned(rows, MOST_HOSTS)
            self.schedule = schedule_among(function, counts_of(rows), counts_of(self._rows))
            self._each = hosts / sum(row.hosts for row in self._rows)
        self._counts = counts_of(self._rows)
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, size: int, element: int = 1, segments: int = 1) -> float:
        if not self.schedule.rounds or not size:
            return 0.0
        chunk = element * -(-size // (element * self.schedule.chunks * segments))
        if (chunk, segments) not in self._known:
            clock = _Clock(self._rows, self._hides, chunk, self._each)
            for wave, level, full in plan(self.schedule, self._counts, segments):
                (clock.go_round if wave.times > 1 else clock.go_on)(wave, level, full)
            self._known[chunk, segments] = float(clock.now.max())
        return self._known[chunk, segments]

    def mean_traffic(self, size: int) -> int:
        chunks = sum(turn.times * int(turn.lengths.sum()) for turn in self.schedule.rounds)
        return chunks * size // (self.schedule.chunks * self.schedule.workers)

    @cached_property
    def carried(self) -> tuple[float, dict[int, float]]:
        """Chunks over the least busy link, and how many times as many over each, as the topology numbers links."""
        # The last host of a row that the topology tells apart stands for all that follow.
        places = np.concatenate(
            [row.places.start + np.minimum(np.arange(row.hosts), len(row.places) - 1) for row in self._rows]
        )
        # Columns in the order of Topology.out_of, into, inside.
        busiest = np.zeros((places.max() + 1, 3))
        np.maximum.at(busiest, places, carried_chunks(self.schedule, self._counts).T)
        links = {link: chunks for link, chunks in enumerate(busiest.ravel().tolist()) if chunks}
        unit = min(links.values())
        return unit, {link: chunks / unit for link, chunks in links.items()}


class _Clock:
    def __init__(self, rows: HostRows, hides: bool, chunk: float, each: float) -> None:
        self._hides, self._each = hides, each
        hosts = [row.hosts for row in rows]

        def of_links(value: Callable[[Link], float]) -> Numbers:
            outside = np.repeat([value(row.host.link) for row in rows], hosts)
            inside = np.repeat([value(row.host.inside) for row in rows], hosts)
            return np.concatenate([outside, outside, inside])

        self._latency = of_links(lambda link: link.latency)
        self._passing = self._latency * np.tile(np.repeat([row.part for row in rows], hosts), 3)
        """The latency as it counts for what passes through a host that stands for others, or for part of one."""
        self._chunk_seconds = chunk * of_links(lambda link: 1 / link.bandwidth)
        workers = [row.hosts * row.host.workers for row in rows]
        self._reduce = chunk * np.repeat([row.host.device.reduce_seconds for row in rows], workers)
        self.now = np.zeros(len(self._reduce))
        self._before = np.zeros_like(self.now)
        """When it began the one before, and posted what it receives in the next."""
        many = len(self._latency)
        self._level = np.zeros(many, np.int64)
        self._ends, self._free = np.zeros(many), np.zeros(many)
        self._begun = np.zeros(many)
        """When the first message of the present level began."""

    def go_on(self, wave: Wave, level: Ranks, full: Numbers) -> None:
        """One wave; ``full`` are the chunks of all messages of its level over the two links of each message."""
        paces = self._chunk_seconds[wave.links]
        busy = full * paces
        for link in wave.links:
            later = self._level[link] < level
            new = link[later]
            self._free[new], self._level[new], self._begun[new] = self._ends[new], level[later], inf
        ready = np.maximum(self.now[wave.sources], self._before[wave.targets])
        ready += self._latency[wave.links].max(axis=0)
        begun = np.maximum(ready, self._free[wave.links].max(axis=0))
        for link in wave.links:
            np.minimum.at(self._begun, link, begun)
        alone = wave.chunks * paces.max(axis=0)
        ended = np.maximum(begun + alone, (self._begun[wave.links] + busy).max(axis=0))
        for link in wave.links:
            np.maximum.at(self._ends, link, ended)
        for ones in (wave.sources, wave.targets):
            self._before[ones] = self.now[ones]
        taken = self._latest(wave, ended) + self._reducing(wave, busy.max(axis=0))
        self.now = np.maximum(self.now, taken)

    def go_round(self, wave: Wave, level: Ranks, full: Numbers) -> None:  # noqa: ARG002
        """Many like waves in which every rank sends to the next; where all times grow alike, the rest is known.

        What goes round a ring of f times as many hosts in f times as many rounds takes f times as long.
        """
        rounds, least = max(1, round(wave.times / self._each)), self.now[wave.targets].min()
        ranks, sources = wave.targets, np.searchsorted(wave.targets, wave.sources)
        carry = (full * self._chunk_seconds[wave.links]).max(axis=0)
        reducing = self._reducing(wave, carry)[ranks]
        latency = self._latency[wave.links].max(axis=0)
        passing = self._passing[wave.links].max(axis=0)
        # When ranks begin their next round, when they began this one, when what they last received was there.
        state = np.stack([self.now[ranks], self._before[ranks], self._ends[wave.links].max(axis=0)])
        state = least + (state - least) / self._each
        looked_at, done, kept = {1, 2, 4, 8, 16, 32}, 0, (0, state)
        while done < rounds:
            now, before, there = state
            ready = np.maximum(now[sources] + passing, before + latency)
            arrived = np.maximum(ready, there) + carry
            state = np.stack([np.maximum(arrived + reducing, now), now, arrived])
            done += 1
            if looked_at and (done in looked_at or done % len(ranks) == 0):
                lag, grown = done - kept[0], state - kept[1]
                kept = (done, state)
                if np.ptp(grown) <= NEAR * state[0].max():
                    jumps, looked_at = (rounds - done) // lag, set()
                    state = state + jumps * grown.max()
                    done += jumps * lag
        state = least + (state - least) * (wave.times / rounds)
        self.now[ranks], self._before[ranks] = state[:2]
        for link in wave.links:
            np.maximum.at(self._ends, link, state[2])

    def _latest(self, wave: Wave, times: Numbers) -> Numbers:
        """Of each rank's messages in a wave, the latest time; 0 where it has none."""
        latest = np.zeros_like(self.now)
        np.maximum.at(latest, wave.targets, times)
        return latest

    def _reducing(self, wave: Wave, carry: Numbers) -> Numbers:
        """How long each rank still reduces when the last of its messages, of ``carry`` seconds each, has arrived.

        Messages of several sources arrive together, for they share the link. Pieces of one message arrive one after
        the other, and each is reduced while the next one travels.
        """
        parts, seconds = (wave.reduced, wave.largest, wave.chunks), self._latest(wave, carry)
        reduced, largest, chunks = (np.bincount(wave.targets, part, len(seconds)) for part in parts)
        whole = self._reduce * reduced
        if self._hides:
            return np.maximum(0.0, whole - seconds)
        later = seconds * (reduced - largest) / np.maximum(chunks, 1)
        rest: Numbers = np.maximum(self._reduce * largest, whole - later)
        return rest


def thinned(rows: HostRows, most: int) -> HostRows:
    """About ``most`` hosts instead of all; where a row cannot be made as much shorter, its latencies count in part."""
    hosts = sum(row.hosts for row in rows)
    counts = [max(1, round(row.hosts * most / hosts)) for row in rows]
    factor = hosts / sum(counts)
    return tuple(
        row._replace(hosts=count, part=row.hosts / (count * factor))
        for row, count in zip(rows, counts, strict=True)
    )

"""A schedule's rounds on a cluster's links, as arrays: who sends to whom, over which links, and with whom at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby, pairwise

import numpy as np
import numpy.typing as npt

from paceline.clusters.cluster import Link
from paceline.collectives.schedule import Ranks, Round, Schedule
from paceline.costs.topology import HostRow

Numbers = npt.NDArray[np.float64]

Counts = tuple[tuple[int, int], ...]
"""Hosts in the order of ranks: (hosts in a row, workers of each)."""


def counts_of(rows: Sequence[HostRow]) -> Counts:
    return tuple((row.hosts, row.host.workers) for row in rows)


@dataclass(frozen=True, eq=False)
class RankHosts:
    """Where the ranks are: the host of each. Links are numbered: out of each host, into each, then inside each."""

    host_of: Ranks
    hosts: int

    @classmethod
    def of(cls, counts: Counts) -> "RankHosts":
        workers = np.repeat([each for _, each in counts], [many for many, _ in counts])
        return cls(np.repeat(np.arange(len(workers)), workers), len(workers))

    def links(self, sources: Ranks, targets: Ranks) -> Ranks:
        near, far = self.host_of[sources], self.host_of[targets]
        same, within = near == far, 2 * self.hosts + near
        return np.stack([np.where(same, within, near), np.where(same, within, self.hosts + far)])

    def load(self, links: Ranks, chunks: Ranks) -> Numbers:
        two = links[0] != links[1]
        weights, most = chunks.astype(np.float64), 3 * self.hosts
        load = np.bincount(links[0], weights, most) + np.bincount(links[1][two], weights[two], most)
        return load.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Links:
    byte_seconds: Numbers
    latency: Numbers
    passing: Numbers
    """The latency as it counts for what passes through a host that stands for others, or for part of one."""
    reduce: Numbers

    @classmethod
    def of(cls, rows: Sequence[HostRow]) -> "Links":
        many = [row.hosts for row in rows]

        def three(value: Callable[[Link], float]) -> Numbers:
            out = np.repeat([value(row.host.link) for row in rows], many)
            return np.concatenate([out, out, np.repeat([value(row.host.inside) for row in rows], many)])

        latency, workers = three(lambda link: link.latency), [row.hosts * row.host.workers for row in rows]
        return cls(
            byte_seconds=three(lambda link: 1 / link.bandwidth),
            latency=latency,
            passing=np.tile(np.repeat([row.part for row in rows], many), 3) * latency,
            reduce=np.repeat([row.host.device.reduce_seconds for row in rows], workers),
        )


@dataclass(eq=False, slots=True)
class Wave:
    """Messages of one round, or of several rounds that segments are in; by target, those of a pair in one."""

    sources: Ranks
    targets: Ranks
    chunks: Ranks
    reduced: Ranks
    largest: Ranks
    links: Ranks
    firsts: Ranks
    order: Ranks
    """Where each message was before they were sorted by target."""
    kinds: tuple[tuple[tuple[int, int], int], ...]
    """Which messages there are, as what tells them apart and how many."""
    times: int = 1

    @classmethod
    def of(cls, under_way: Sequence[tuple[Round, int]], places: RankHosts) -> "Wave":
        pairs: dict[tuple[int, int], list[tuple[Round, int]]] = {}
        for turn, count in under_way:
            pairs.setdefault((id(turn.sources), id(turn.targets)), []).append((turn, count))
        columns, kinds = [], []
        for key, same in pairs.items():
            first = same[0][0]
            total = sum(turn.lengths * count for turn, count in same)
            added = sum(turn.lengths * turn.reduces * count for turn, count in same)
            longest = np.max([turn.lengths * turn.reduces for turn, _ in same], axis=0)
            columns.append((first.sources, first.targets, total, added, longest))
            kinds.append((key, len(first.sources)))
        order = np.argsort(np.concatenate([column[1] for column in columns]), kind="stable")
        joined: list[Ranks] = [np.concatenate(column)[order] for column in zip(*columns, strict=True)]
        sources, targets, chunks, reduced, largest = joined
        firsts = np.flatnonzero(np.diff(targets, prepend=-1))
        links = places.links(sources, targets)
        return cls(sources, targets, chunks, reduced, largest, links, firsts, order, tuple(kinds))


Plan = tuple[tuple[Wave, Ranks, Numbers], ...]
"""Each wave with the level of its messages, and the chunks over their two links while they are under way."""


@lru_cache(maxsize=32)
def schedule_among(function: Callable[[Ranks], Schedule], counts: Counts, fewer: Counts = ()) -> Schedule:
    """The schedule among these hosts, or as many rounds of as many chunks among fewer."""
    whole = function(RankHosts.of(counts).host_of)
    if not fewer:
        return whole
    few = schedule_among(function, fewer)
    rounds = (
        replace(one, times=turn.times, stops=one.starts + turn.lengths.max(initial=0))
        for one, turn in zip(few.rounds, whole.rounds, strict=True)
    )
    return replace(few, chunks=whole.chunks, rounds=tuple(rounds))


@lru_cache(maxsize=16)
def plan(schedule: Schedule, counts: Counts, segments: int) -> Plan:
    places = RankHosts.of(counts)
    found = waves(schedule.rounds, segments, places)
    return tuple((wave, *pace) for wave, pace in zip(found, paces(found, places), strict=True))


@lru_cache(maxsize=32)
def carried_chunks(schedule: Schedule, counts: Counts) -> Numbers:
    """Chunks that each host carries: out of it, into it and inside it, in three rows."""
    places = RankHosts.of(counts)
    load = np.zeros(3 * places.hosts)
    for turn in schedule.rounds:
        links = places.links(turn.sources, turn.targets)
        load += places.load(links, turn.lengths * turn.times)
    return load.reshape(3, -1)


def waves(rounds: Sequence[Round], segments: int, places: RankHosts) -> list[Wave]:
    """The waves that ``pipelined`` makes of a schedule: wave w is the rounds w - segments + 1 to w at the same time."""
    made: dict[tuple[int, ...], Wave] = {}
    found: list[Wave] = []
    for counts, times in _under_way([turn.times for turn in rounds], segments):
        if counts not in made:
            under_way = [(turn, count) for turn, count in zip(rounds, counts, strict=True) if count]
            made[counts] = wave = Wave.of(under_way, places)
            # In a circle each rank receives from one and sends to one.
            once = len(wave.firsts) == len(wave.targets)
            wave.times = times if once and np.array_equal(np.sort(wave.sources), wave.targets) else 1
        found += [made[counts]] * (times // made[counts].times)
    return found


def _under_way(times: Sequence[int], segments: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """How many rounds of each kind are under way, and in how many waves in a row.

    A kind that stands for many rounds is in full swing for most of them; only where one begins or ends is looked at
    wave by wave.
    """
    ends = [0, *accumulate(times)]
    last = ends[-1] + segments - 1
    starts = {wave for end in ends for wave in range(end - 1, end + segments + 1) if 0 <= wave < last}

    def counts(wave: int) -> tuple[int, ...]:
        return tuple(
            max(0, min(wave + 1, end) - max(wave - segments + 1, begin)) for begin, end in pairwise(ends)
        )

    spans = [(counts(wave), following - wave) for wave, following in pairwise([*sorted({0, *starts}), last])]
    for same, found in groupby(spans, key=lambda span: span[0]):
        yield same, sum(length for _, length in found)


def paces(found: Sequence[Wave], places: RankHosts) -> list[tuple[Ranks, Numbers]]:
    """For each wave the level of its messages, and the chunks over their two links while they are under way.

    Messages of one level are under way at the same time and share links. A message's level is one more than that of
    whatever it has to wait for: what its sender received before, what its receiver took in two rounds before, and the
    message before it between the same two.
    """
    ranks = len(places.host_of)
    now, before = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    pairs: dict[tuple[int, int], Ranks] = {}
    levels: list[Ranks] = []
    loads: dict[int, Numbers] = {}
    for wave in found:
        waits = np.maximum(now[wave.sources], before[wave.targets])
        after = [pairs.get(key, np.zeros(many, np.int64)) for key, many in wave.kinds]
        level = 1 + np.maximum(waits, np.concatenate(after)[wave.order])
        levels.append(level)
        last = level + wave.times - 1
        unsorted = np.empty_like(last)
        unsorted[wave.order] = last
        cuts = np.cumsum([many for _, many in wave.kinds])[:-1]
        pairs.update(zip((key for key, _ in wave.kinds), np.split(unsorted, cuts), strict=True))
        for ones in (wave.sources, wave.targets):
            before[ones] = now[ones]
        np.maximum.at(now, wave.targets, last)
        for one in _present(level) if wave.times == 1 else ():
            here = level == one
            load = places.load(wave.links[:, here], wave.chunks[here])
            loads[one] = loads[one] + load if one in loads else load
    return [(level, _full(wave, level, loads, places)) for wave, level in zip(found, levels, strict=True)]


def _full(wave: Wave, level: Ranks, loads: dict[int, Numbers], places: RankHosts) -> Numbers:
    if wave.times > 1:
        return places.load(wave.links, wave.chunks)[wave.links]
    full = np.empty(wave.links.shape)
    for one in _present(level):
        here = level == one
        full[:, here] = loads[one][wave.links[:, here]]
    return full


def _present(level: Ranks) -> list[int]:
    found: list[int] = np.flatnonzero(np.bincount(level)).tolist()
    return found

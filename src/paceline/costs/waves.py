"""A schedule's rounds on a cluster's links, as arrays: which rank sends to which, and which messages share links."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, eq=False, slots=True)
class Wave:
    """Messages of one round, or of several rounds that segments are in, by target; those of all segments are one."""

    messages: Ranks
    """Which of the schedule's they are, counted from its first round."""
    sources: Ranks
    targets: Ranks
    chunks: Ranks
    reduced: Ranks
    largest: Ranks
    links: Ranks
    times: int
    """Of waves in a circle, in which each rank receives from one and sends to one: how many there are in a row."""


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
    """Which messages are under way at the same time, and share links: those of one level.

    A message's level is one more than that of whatever it has to wait for: what its sender received before, what its
    receiver took in two rounds before, and the message before it between the same two.
    """
    places = RankHosts.of(counts)
    waves = _waves(schedule.rounds, segments, places)
    now, before = np.zeros((2, schedule.workers), np.int64)
    last = np.zeros(sum(len(turn.sources) for turn in schedule.rounds), np.int64)
    levels: list[Ranks] = []
    loads: dict[int, Numbers] = defaultdict(lambda: np.zeros(3 * places.hosts))
    for wave in waves:
        waits = np.maximum(now[wave.sources], before[wave.targets])
        level = 1 + np.maximum(waits, last[wave.messages])
        levels.append(level)
        last[wave.messages] = ends = level + wave.times - 1
        for ones in (wave.sources, wave.targets):
            before[ones] = now[ones]
        np.maximum.at(now, wave.targets, ends)
        for one in np.unique(level).tolist() if wave.times == 1 else ():
            here = level == one
            loads[one] += places.load(wave.links[:, here], wave.chunks[here])
    return tuple(
        (wave, level, _full(wave, level, loads, places)) for wave, level in zip(waves, levels, strict=True)
    )


def _full(wave: Wave, level: Ranks, loads: Mapping[int, Numbers], places: RankHosts) -> Numbers:
    if wave.times > 1:
        return places.load(wave.links, wave.chunks)[wave.links]
    present, which = np.unique(level, return_inverse=True)
    full: Numbers = np.stack([loads[one] for one in present.tolist()])[which, wave.links]
    return full


def _waves(rounds: Sequence[Round], segments: int, places: RankHosts) -> list[Wave]:
    """The waves that ``pipelined`` makes of a schedule: wave w is the rounds w - segments + 1 to w at the same time."""
    kinds = np.repeat(np.arange(len(rounds)), [len(turn.sources) for turn in rounds])
    sources = np.concatenate([turn.sources for turn in rounds])
    targets = np.concatenate([turn.targets for turn in rounds])
    lengths = np.concatenate([turn.lengths for turn in rounds])
    reduced = np.concatenate([turn.lengths * turn.reduces for turn in rounds])
    found: list[Wave] = []
    for counts, times in _under_way([turn.times for turn in rounds], segments):
        many = counts[kinds]
        here = np.flatnonzero(many)
        here = here[np.argsort(targets[here], kind="stable")]
        ends = sources[here], targets[here]
        circle = np.array_equal(np.unique(ends[0]), ends[1])
        wave = Wave(
            messages=here,
            sources=ends[0],
            targets=ends[1],
            chunks=(lengths * many)[here],
            reduced=(reduced * many)[here],
            largest=reduced[here],
            links=places.links(*ends),
            times=times if circle else 1,
        )
        found += [wave] * (times // wave.times)
    return found


def _under_way(times: Sequence[int], segments: int) -> Iterator[tuple[Ranks, int]]:
    """How many rounds of each kind are under way, and in how many waves in a row."""
    ends = np.cumsum(times)
    waves = np.arange(ends[-1] + segments - 1)[:, None]
    counts = np.maximum(0, np.minimum(waves + 1, ends) - np.maximum(waves - segments + 1, ends - times))
    changes = np.flatnonzero(np.diff(counts, axis=0, prepend=-1).any(axis=1))
    return zip(counts[changes], np.diff(changes, append=len(waves)).tolist(), strict=True)


@lru_cache(maxsize=32)
def carried_chunks(schedule: Schedule, counts: Counts) -> Numbers:
    """Chunks that each host carries: out of it, into it and inside it, in three rows."""
    places = RankHosts.of(counts)
    load = np.zeros(3 * places.hosts)
    for turn in schedule.rounds:
        links = places.links(turn.sources, turn.targets)
        load += places.load(links, turn.lengths * turn.times)
    return load.reshape(3, -1)

"""A schedule among very many workers, in short: what hosts carry in each round, said once for hosts that are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.collectives.many import OUTLINES, Messages, Outline, Ranks
from paceline.costs.folded import Run

MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Rounds that are alike, as the hosts and ranks see them that stand for the others."""

    times: int
    chunks: int
    """Of a message."""
    reduces: bool
    messages: int
    senders: int
    pairs: tuple[tuple[int, int, int], ...]
    """The kinds of hosts between which messages go, and whether they stay in the host."""
    loads: npt.NDArray[np.float64]
    """Chunks out of, into and inside each host: first all that go out."""
    targets: Ranks
    """Of the messages to ranks that stand for others: to which."""
    ways: Ranks
    """The two links of each of these messages, as places in ``loads``; inside a host the same one twice."""


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """A schedule of which nothing is as long as there are workers."""

    workers: int
    chunks: int
    rounds: tuple[Turn, ...]
    hosts: tuple[int, ...]
    """The kind of each host that stands for those which carry the same in every round."""
    ranks: tuple[int, ...]
    """The kind of host of each rank that stands for those which take in the same; empty where reducing is free."""


@lru_cache(maxsize=32)
def digest(collective: str, order: tuple[Run, ...], sizes: tuple[int, ...], reducing: bool) -> Digest:
    """The schedule of that name among hosts in this order, with so many workers a kind; links do not matter yet."""
    kinds = np.concatenate([np.full(run.hosts, run.kind) for run in order])
    host_of = np.repeat(np.arange(len(kinds)), np.array(sizes)[kinds])
    outline = OUTLINES[collective](host_of)
    carried = [_loads(turn, host_of, len(kinds)) for turn in outline.rounds]
    standing, host_class = _classes(kinds, [load for loads in carried for load in loads])
    ranks = _alike_ranks(outline, host_of, host_class) if reducing else np.arange(0)
    rank_class = np.full(len(host_of), -1)
    rank_class[ranks] = np.arange(len(ranks))
    rounds = [
        _turn(turn, [load[standing] for load in loads], host_of, kinds, host_class, rank_class)
        for turn, loads in zip(outline.rounds, carried, strict=True)
    ]
    return Digest(
        outline.workers,
        outline.chunks,
        tuple(rounds),
        tuple(kinds[standing].tolist()),
        tuple(kinds[host_of[ranks]].tolist()),
    )


def _turn(
    turn: Messages, loads: Sequence[Ranks], host_of: Ranks, kinds: Ranks, host_class: Ranks, rank_class: Ranks
) -> Turn:
    few = len(loads[0])
    source, target = host_of[turn.sources], host_of[turn.targets]
    many = int(kinds.max()) + 1
    pairs = _present((kinds[source] * many + kinds[target]) * 2 + (source == target))
    kept = rank_class[turn.targets] >= 0
    source, target = source[kept], target[kept]
    same, within = source == target, 2 * few + host_class[source]
    return Turn(
        times=turn.times,
        chunks=turn.chunks,
        reduces=turn.reduces,
        messages=len(turn.sources),
        senders=len(_present(turn.sources)),
        pairs=tuple((pair // 2 // many, pair // 2 % many, pair % 2) for pair in pairs.tolist()),
        loads=np.concatenate(loads).astype(np.float64),
        targets=rank_class[turn.targets[kept]],
        ways=np.stack(
            [np.where(same, within, host_class[source]), np.where(same, within, few + host_class[target])]
        ),
    )


def _loads(turn: Messages, host_of: Ranks, hosts: int) -> tuple[Ranks, Ranks, Ranks]:
    """Chunks out of, into and inside every host."""
    source, target = host_of[turn.sources], host_of[turn.targets]
    same = source == target
    out = np.bincount(source[~same], minlength=hosts)
    into = np.bincount(target[~same], minlength=hosts)
    inside = np.bincount(source[same], minlength=hosts)
    return turn.chunks * out, turn.chunks * into, turn.chunks * inside


def _alike_ranks(outline: Outline, host_of: Ranks, host_class: Ranks) -> Ranks:
    """One rank of those that take in the same from hosts that carry the same."""
    seen = []
    for turn in outline.rounds:
        source = host_of[turn.sources]
        came = 2 * host_class[source] + 2 + (source == host_of[turn.targets])
        seen.append(np.bincount(turn.targets, weights=came, minlength=len(host_of)).astype(np.int64))
    return _classes(host_class[host_of], seen)[0]


def _present(numbers: Ranks) -> Ranks:
    """Each of these numbers once; counted and not sorted, where they are not too large for that."""
    if numbers.max() > 10**7:
        return np.unique(numbers)
    return np.flatnonzero(np.bincount(numbers))


def _classes(first: Ranks, rows: Sequence[Ranks]) -> tuple[Ranks, Ranks]:
    """Which columns stand for those that are equal to them in all rows, and for each column the number of its own.

    Columns are told apart by 64 bits that are mixed from all their numbers.
    """
    mixed = (first.astype(np.uint64) + np.uint64(1)) * MIX
    for row in rows:
        mixed ^= mixed >> np.uint64(29)
        mixed = (mixed + row.astype(np.uint64)) * MIX
    _, standing, own = np.unique(mixed, return_index=True, return_inverse=True)
    return standing, own

"""The schedules once more, a round at a time as arrays of ranks: what prices are worked out from.

Only who sends to whom how many chunks: that is all that a price depends on. The tests hold them equal to the schedules
themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from paceline.collectives.algorithms.folding import power_of_two
from paceline.collectives.pipeline import segments_of

Ranks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rounds that are alike: each source sends so many chunks to the target in the same place."""

    sources: Ranks
    targets: Ranks
    chunks: int
    reduces: bool
    times: int = 1
    """How many rounds."""

    @property
    def pairs(self) -> tuple[int, int]:
        """The same for rounds that are written with the same arrays of ranks."""
        return id(self.sources), id(self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """A schedule of many ranks."""

    workers: int
    chunks: int
    rounds: tuple[Messages, ...]

    @property
    def circles(self) -> bool:
        """Whether it has rounds that are alike."""
        return any(turn.times > 1 for turn in self.rounds)

    def segments(self, size: int) -> int:
        """In how many segments it carries so many bytes."""
        busy = all(len(turn.sources) == self.workers for turn in self.rounds)
        largest = max((turn.chunks for turn in self.rounds), default=0)
        return segments_of(size * largest // self.chunks, busy)

    def among(self, few: "Outline") -> "Outline":
        """As many rounds of as many chunks, among the ranks of the same schedule for fewer hosts."""
        turns = zip(few.rounds, self.rounds, strict=True)
        rounds = tuple(replace(one, times=mine.times, chunks=mine.chunks) for one, mine in turns)
        return replace(few, chunks=self.chunks, rounds=rounds)


def ring(hosts: Ranks) -> Outline:
    """Everybody to the right."""
    return Outline(len(hosts), len(hosts), _around(np.arange(len(hosts))))


def tree(hosts: Ranks) -> Outline:
    """To rank 0 and back."""
    workers = len(hosts)
    lefts = [(np.arange(0, workers - far, 2 * far), far) for far in _distances(workers)]
    up = [Messages(left + far, left, 1, True) for left, far in lefts]
    down = [Messages(left, left + far, 1, False) for left, far in reversed(lefts)]
    return Outline(workers, 1, (*up, *down))


def butterfly(hosts: Ranks) -> Outline:
    """Whole tensors between partners."""
    power = power_of_two(len(hosts))
    ranks = np.arange(power)
    swaps = [Messages(ranks, ranks ^ far, 1, True) for far in _distances(power)]
    return _folded(len(hosts), 1, swaps)


def halving_doubling(hosts: Ranks) -> Outline:
    """Halves, quarters and so on, and back."""
    power = power_of_two(len(hosts))
    ranks = np.arange(power)
    halving = [Messages(ranks, ranks ^ far, power // (2 * far), True) for far in _distances(power)]
    doubling = [
        Messages(ranks, ranks ^ far, power // (2 * far), False) for far in reversed(_distances(power))
    ]
    return _folded(len(hosts), power, [*halving, *doubling])


def one_to_all(hosts: Ranks) -> Outline:
    """All to rank 0, and rank 0 to all."""
    others = np.arange(1, len(hosts))
    master = np.zeros_like(others)
    rounds = (Messages(others, master, 1, True), Messages(master, others, 1, False))
    return Outline(len(hosts), 1, rounds if len(others) else ())


def hierarchical(hosts: Ranks) -> Outline:
    """Trees inside hosts, whose ranks follow each other, and a ring among their first ranks."""
    firsts = np.flatnonzero(np.diff(hosts, prepend=hosts[0] - 1))
    sizes = np.diff(firsts, append=len(hosts))
    place = np.arange(len(hosts)) - np.repeat(firsts, sizes)
    chunks = len(firsts)
    rights = [(np.flatnonzero(place % (2 * far) == far), far) for far in _distances(int(sizes.max()))]
    up = [Messages(right, right - far, chunks, True) for right, far in rights]
    down = [Messages(right - far, right, chunks, False) for right, far in reversed(rights)]
    return Outline(len(hosts), chunks, (*up, *_around(firsts), *down))


def all_gather(hosts: Ranks) -> Outline:
    """What every rank has, a chunk each, goes round until all have all."""
    return Outline(len(hosts), 1, _around(np.arange(len(hosts)))[1:])


def _around(members: Ranks) -> tuple[Messages, ...]:
    if len(members) == 1:
        return ()
    following, rounds = np.roll(members, -1), len(members) - 1
    return (
        Messages(members, following, 1, True, rounds),
        Messages(members, following, 1, False, rounds),
    )


def _folded(workers: int, chunks: int, rounds: list[Messages]) -> Outline:
    """With the ranks beyond a power of two."""
    power = power_of_two(workers)
    surplus = np.arange(power, workers)
    if len(surplus):
        before = Messages(surplus, surplus - power, chunks, True)
        after = Messages(surplus - power, surplus, chunks, False)
        rounds = [before, *rounds, after]
    return Outline(workers, chunks, tuple(rounds))


def _distances(workers: int) -> list[int]:
    """1, 2, 4 and so on, below ``workers``."""
    return [1 << power for power in range((workers - 1).bit_length())]


OUTLINES: Mapping[str, Callable[[Ranks], Outline]] = MappingProxyType(
    {
        "ring": ring,
        "tree": tree,
        "butterfly": butterfly,
        "halving-doubling": halving_doubling,
        "one-to-all": one_to_all,
        "hierarchical": hierarchical,
    }
)
"""By the schedule's name, from the host of every rank."""

"""What a schedule costs among very many workers: as ``schedules`` says, with arrays in the place of lists.

Of every wave of rounds two numbers are kept, its delay and its seconds a byte of a chunk: each new size is cheap.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.collectives.pipeline import MESSAGE, MOST
from paceline.costs.digest import Turn, digest
from paceline.costs.folded import Folded
from paceline.costs.prices import FREE, Price

Numbers = npt.NDArray[np.float64]


class Bulk:
    """All-reduces by a schedule among the workers of folded hosts."""

    def __init__(self, collective: str, topology: Folded) -> None:
        hosts = topology.hosts
        self._representatives = len(topology.workers)
        self._digest = found = digest(
            collective,
            topology.folding.order,
            tuple(host.workers for host in hosts),
            any(host.device.reduce_seconds for host in hosts),
        )
        link = np.array([1 / hosts[kind].link.bandwidth for kind in found.hosts])
        inside = np.array([1 / hosts[kind].inside.bandwidth for kind in found.hosts])
        self._links = np.concatenate([link, link, inside])
        self._reduce = np.array([hosts[kind].device.reduce_seconds for kind in found.ranks])
        self._delays = [max(_latency(topology, *pair) for pair in turn.pairs) for turn in found.rounds]
        self._waves = cache(self._priced)

    def price(self, size: int, element: int) -> Price:
        """That of the schedule's rounds, in the segments in which it is carried out."""
        if not self._digest.rounds or size == 0:
            return FREE
        segments = self._segments(size)
        chunk = element * -(-size // (element * self._digest.chunks * segments))
        delay, pace = self._waves(segments)
        return Price((), delay + chunk * pace)

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        """The mean of all ranks; they differ."""
        found = self._digest
        chunks = sum(turn.times * turn.chunks * turn.messages for turn in found.rounds)
        mean = chunks * size // (found.chunks * found.workers)
        return [(mean, mean)] * self._representatives

    def _segments(self, size: int) -> int:
        found = self._digest
        if all(turn.senders == found.workers for turn in found.rounds):
            return 1
        largest = size * max(turn.chunks for turn in found.rounds) // found.chunks
        return max(1, min(MOST, -(-largest // MESSAGE)))

    def _priced(self, segments: int) -> tuple[float, float]:
        """The delays of all waves, and their seconds a byte of a chunk."""
        delay = pace = 0.0
        rounds = self._digest.rounds
        for counts, times in _waves([turn.times for turn in rounds], segments):
            places = [place for place, count in enumerate(counts) if count]
            delay += times * max(self._delays[place] for place in places)
            pace += times * self._carried([(rounds[place], counts[place]) for place in places])
        return delay, pace

    def _carried(self, under_way: Sequence[tuple[Turn, int]]) -> float:
        """Seconds a byte of a chunk until the slowest link is through and the last rank has reduced."""
        loads = np.zeros(len(self._links))
        for turn, count in under_way:
            loads += count * turn.loads
        paces = loads * self._links
        slowest = float(paces.max())
        return max(slowest, self._reduced(under_way, paces)) if len(self._reduce) else slowest

    def _reduced(self, under_way: Sequence[tuple[Turn, int]], paces: Numbers) -> float:
        """When the last rank has taken in and reduced all; ``overlapped``, for all ranks at once."""
        total, reduced, largest, slowest = (np.zeros(len(self._reduce)) for _ in range(4))
        for turn, count in under_way:
            came = count * turn.chunks * np.bincount(turn.targets, minlength=len(total))
            total += came
            if turn.reduces:
                reduced += came
                largest[turn.targets] = np.maximum(largest[turn.targets], turn.chunks)
            np.maximum.at(slowest, turn.targets, paces[turn.ways].max(axis=0))
        byte = slowest / np.maximum(total, 1)
        last = byte * total + self._reduce * largest
        first = byte * (total - reduced + largest) + self._reduce * reduced
        return float(np.where(reduced > 0, np.maximum(last, first), byte * total).max())


def _latency(topology: Folded, source: int, target: int, same: int) -> float:
    """Of a message between hosts of two kinds, or inside a host of the first."""
    one, other = topology.hosts[source], topology.hosts[target]
    return one.inside.latency if same else max(one.link.latency, other.link.latency)


def _waves(times: Sequence[int], segments: int) -> list[tuple[tuple[int, ...], int]]:
    """The waves of a pipeline: how many rounds of each kind are under way, and in how many waves in a row.

    A kind that stands for many rounds is in full swing for most of them; only where one begins or ends is looked at
    wave by wave.
    """
    ends = [0]
    for one in times:
        ends.append(ends[-1] + one)
    last = ends[-1] + segments - 1
    looked_at = {wave for end in ends for wave in range(end - 1, end + segments + 1) if 0 <= wave < last}
    found = []
    waves = sorted({0, *looked_at})
    for wave, following in zip(waves, [*waves[1:], last], strict=True):
        counts = tuple(
            max(0, min(wave + 1, end) - max(wave - segments + 1, begin)) for begin, end in pairwise(ends)
        )
        found.append((counts, following - wave))
    return found

"""Which part of their parameters workers that train apart average after which step: pure arithmetic on their clock.

So a program may be started anew at any step, and all workers agree without a message.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, kw_only=True)
class RoundSchedule:
    """Rounds of steps, each ``growth`` times as long as the one before until they are the longest.

    In each round every fragment is averaged once, at even distances; the last one when the round ends.
    """

    first: int
    growth: float = 1.0
    longest: int
    fragments: int = 1
    since: int = 0
    """The clock at which the first round begins."""

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The clock at the beginning and at the end of each round that is shorter than the longest."""
        lengths, length = [], float(self.first)
        while int(length) < self.longest and self.growth > 1:
            lengths.append(int(length))
            length *= self.growth
        return tuple(accumulate(lengths, initial=self.since))

    @property
    def settled(self) -> int:
        """The clock from which on all rounds are equally long."""
        return self._ends[-1]

    def due(self, clock: int) -> int | None:
        """The fragment that is averaged after the step that ends at this clock; None after most steps."""
        if clock <= self.since:
            return None
        begun, length = self._round(clock)
        fragment = -(-(clock - begun) * self.fragments // length)
        return fragment - 1 if begun + length * fragment // self.fragments == clock else None

    def _round(self, clock: int) -> tuple[int, int]:
        """When the round of the step that ends at this clock began, and how many steps it has."""
        ends = self._ends
        if clock > ends[-1]:
            return clock - 1 - (clock - 1 - ends[-1]) % self.longest, self.longest
        place = bisect_right(ends, clock - 1)
        return ends[place - 1], ends[place] - ends[place - 1]

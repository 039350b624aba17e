"""The cells of one size: all sides in turn, checked first and last, timed in between."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from paceline.costs.bandwidth import algbw, busbw
from paceline.studies.collectives.pattern import Pattern
from paceline.studies.collectives.request import Request
from paceline.studies.collectives.results import Cell
from paceline.studies.collectives.room import BenchGroup
from paceline.studies.collectives.sides import Side
from paceline.studies.collectives.timing import calls_within, quartiles, share, timed

ROUNDS = 5
"""How often each side has its turn."""


@dataclass
class _Trial:
    """One side at one size, while it is measured."""

    side: Side
    length: int
    calls: int = 0
    times: list[float] = field(default_factory=list)
    right: bool = True
    begun: float = field(default_factory=time.time)

    def run(self) -> None:
        self.side.reduce(self.side.buffer[: self.length])


class Measurer:
    """Fills the table, a size at a time. ``tick`` is told of every turn, on all ranks."""

    def __init__(
        self, asked: Request, room: BenchGroup, pattern: Pattern, tick: Callable[[str], None]
    ) -> None:
        self._asked, self._room, self._pattern, self._tick = asked, room, pattern, tick

    def measure(self, size: int, sides: Sequence[Side], predicted: Mapping[str, float]) -> list[Cell]:
        """The cells of one size, in the order of the sides."""
        trials = [_Trial(side, size // self._asked.element) for side in sides]
        for trial in trials:
            self._check(trial)
            self._warm(trial)
        for turn in range(ROUNDS):
            for trial in _rotated(trials, turn):
                self._turn(trial, turn)
        for trial in trials:
            self._check(trial)
        return [self._cell(trial, size, predicted[trial.side.name]) for trial in trials]

    def _check(self, trial: _Trial) -> None:
        """Reduce known values, and compare. Zeros afterwards: sums of sums would leave the numbers' range."""
        part = trial.side.buffer[: trial.length]
        self._pattern.lay(part)
        trial.run()
        trial.right = self._room.agree(self._pattern.holds(part)) and trial.right
        part.zero_()

    def _warm(self, trial: _Trial) -> None:
        """Once more without counting; then decide how many calls there is time for."""
        (once,) = timed(self._room, trial.run, 1)
        trial.calls = self._asked.repeats or calls_within(self._asked.cell_seconds, once)

    def _turn(self, trial: _Trial, turn: int) -> None:
        """This round's share of the calls."""
        trial.times += timed(self._room, trial.run, share(trial.calls, turn, ROUNDS))
        self._tick(trial.side.name)

    def _cell(self, trial: _Trial, size: int, predicted: float) -> Cell:
        middle = median(trial.times)
        low, high = quartiles(trial.times)
        return Cell(
            what=trial.side.name,
            size=size,
            median=middle,
            low=low,
            high=high,
            repeats=len(trial.times),
            algbw=algbw(size, middle),
            busbw=busbw("all_reduce", size, middle, self._room.workers),
            right=trial.right,
            predicted=predicted,
            measured_at=trial.begun,
        )


def _rotated(trials: Sequence[_Trial], turn: int) -> list[_Trial]:
    """Everybody comes after everybody else now and then."""
    order = [*trials[turn % len(trials) :], *trials[: turn % len(trials)]]
    return order if turn % 2 else order[::-1]

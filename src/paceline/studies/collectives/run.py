"""The benchmark as one worker takes part in it: probe, predict, then all sides in turn, size by size."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import torch

from paceline.collectives.execute import find_operation
from paceline.costs.bandwidth import algbw, busbw
from paceline.errors import UsageError
from paceline.records.load import LoadMeter, disturbance
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.threads import usual_threads
from paceline.studies.collectives.group import (
    BenchGroup,
    BenchInterrupted,
    calls_within,
    quartiles,
    share,
    timed,
)
from paceline.studies.collectives.probe import Prober, predict
from paceline.studies.collectives.request import (
    BenchEvent,
    BenchProgress,
    BenchRequest,
    BenchResult,
    BenchSettings,
    Cell,
    check_workers,
)
from paceline.studies.collectives.sides import Pattern, Side, build_sides, left_out

ROUNDS = 5
"""How often each side has its turn."""


def run_bench(
    asked: BenchRequest,
    place: ProcessInfo,
    *,
    show: Callable[[BenchEvent], None],
    beat: Callable[[int], None],
    stopping: Callable[[], bool],
) -> BenchResult:
    """Measure with all other workers, which must be asked for the same.

    On rank 0 ``show`` gets what is known, as soon as it is. ``beat`` gets the number of turns so far, and ``stopping``
    says at each of them whether to end.
    """
    check_workers(place.workers)
    with BenchGroup(place, stopping) as group:
        for rank, other in enumerate(group.exchange(asdict(asked))):
            if difference := asked.difference(other):
                raise UsageError(
                    f"rank {rank} was asked for something else than rank {group.rank}: {difference}; start all alike"
                )
        torch.set_num_threads(usual_threads())
        result = BenchResult(
            settings=BenchSettings(
                request=_shared_here(asked, group),
                hosts=tuple(Counter(group.hosts).values()),
                threads=torch.get_num_threads(),
                torch=str(torch.__version__),
            )
        )
        meter = LoadMeter(job_roots(place), place.local_workers * torch.get_num_threads())
        with suppress(BenchInterrupted):
            _measure(result, group, show if place.rank == 0 else lambda _: None, beat)
        if disturbed := disturbance([meter.load()], "the benchmark"):
            result.notes.append(disturbed)
    return result


def _shared_here(asked: BenchRequest, group: BenchGroup) -> BenchRequest:
    idle = left_out(asked, group.shm.comm.team_sizes)
    asked = replace(asked, only=tuple(name for name in asked.only if name not in idle))
    if not asked.only:
        raise UsageError(
            f"{', '.join(idle)}: no two workers share memory here; choose a schedule such as ring, or start two "
            "workers on a host"
        )
    return asked


def _measure(
    result: BenchResult, group: BenchGroup, show: Callable[[BenchEvent], None], beat: Callable[[int], None]
) -> None:
    asked = result.settings.request
    dtype: torch.dtype = getattr(torch, asked.dtype)
    operation = find_operation(asked.op, dtype)
    turns = 0

    def tick(words: str) -> None:
        nonlocal turns
        beat(turns)
        show(BenchProgress(turns / (len(asked.sizes) * len(asked.only) * ROUNDS), words))
        turns += 1

    show(result.settings)
    tick("probes")
    sides = build_sides(asked, group, operation, dtype)
    found = Prober(group, asked.cell_seconds / 2).probe(sides, operation, dtype)
    result.prediction = predict(found, group.hosts, asked.only, asked.sizes, dtype.itemsize)
    show(result.prediction)
    measurer = Measurer(asked, group, Pattern(operation, dtype, group.rank, group.workers), tick)
    for size in asked.sizes:
        cells = measurer.measure(size, list(sides.values()), result.prediction.seconds)
        show(cells)
        result.cells += cells
    result.ending = "done" if all(cell.right for cell in result.cells) else "wrong"


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
    """Fills the table, a size at a time: checked first and last, timed in between. ``tick`` is called every turn."""

    def __init__(
        self, asked: BenchRequest, group: BenchGroup, pattern: Pattern, tick: Callable[[str], None]
    ) -> None:
        self._asked, self._group, self._pattern, self._tick = asked, group, pattern, tick

    def measure(
        self, size: int, sides: Sequence[Side], predicted: Mapping[str, Mapping[int, float]]
    ) -> list[Cell]:
        """The cells of one size, in the order of the sides; ``predicted`` are seconds by side and size."""
        trials = [_Trial(side, size // side.buffer.element_size()) for side in sides]
        for trial in trials:
            self._check(trial)
            (once,) = timed(self._group, trial.run, 1)  # a warm-up too
            trial.calls = self._asked.repeats or calls_within(self._asked.cell_seconds, once)
        for turn in range(ROUNDS):
            for trial in _rotated(trials, turn):
                trial.times += timed(self._group, trial.run, share(trial.calls, turn, ROUNDS))
                self._tick(trial.side.name)
        for trial in trials:
            self._check(trial)
        return [self._cell(trial, size, predicted[trial.side.name][size]) for trial in trials]

    def _check(self, trial: _Trial) -> None:
        """Reduce known values, and compare. Zeros afterwards: sums of sums would leave the numbers' range."""
        part = trial.side.buffer[: trial.length]
        self._pattern.fill(part)
        trial.run()
        trial.right = self._group.agree(self._pattern.holds(part)) and trial.right
        part.zero_()

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
            busbw=busbw("all_reduce", size, middle, self._group.workers),
            right=trial.right,
            predicted=predicted,
            measured_at=trial.begun,
        )


def _rotated(trials: Sequence[_Trial], turn: int) -> list[_Trial]:
    """Another order every turn, so that no side always follows the same one."""
    order = [*trials[turn % len(trials) :], *trials[: turn % len(trials)]]
    return order if turn % 2 else order[::-1]

"""What a study of convergence finds: each run's evaluations, and what they say of a pair over all seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf
from statistics import median, median_low

from paceline.studies.convergence.study import ConvergenceStudy, GridCell, Pair
from paceline.studies.grid import Spread

SCHEMA = 1
BELOW = 0.01
"""How far below the first pair's accuracy the target lies where none is given: one point."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The central model at one point of a run, and what training had taken until then.

    Evaluations, checkpoints and what is exchanged for them are in no figure: how often a run is looked at does not
    decide which one is faster.
    """

    seconds: float
    """Simulated."""
    sent: int
    """Bytes that all workers and servers have sent for training."""
    samples: int
    """Of all workers."""
    accuracy: float
    loss: float
    """On the test data."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One run, to its end or to where it failed."""

    cell: GridCell
    evaluations: tuple[Evaluation, ...] = ()
    failure: str = ""
    """Why it did not reach its end, in one sentence."""

    def reached(self, target: float) -> Evaluation | None:
        return next((one for one in self.evaluations if one.accuracy >= target), None)

    @property
    def final(self) -> float | None:
        return self.evaluations[-1].accuracy if self.evaluations and not self.failure else None


@dataclass(frozen=True)
class MedianEvaluation:
    """The n-th evaluation of all seeds: medians, and the range of the accuracy."""

    seconds: float
    sent: float
    samples: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ConvergenceRow:
    """One pair over all its seeds. Medians count a run that never reached the target as infinite."""

    pair: Pair
    runs: int
    reached: int
    """How many runs reached the target."""
    seconds: Spread
    sent: Spread
    samples: Spread
    final: Spread | None
    """The accuracy at the end; None where every run failed."""
    best: float
    """The highest accuracy of any run."""
    failures: tuple[str, ...]
    curve: tuple[MedianEvaluation, ...]

    @property
    def on_target(self) -> bool:
        """Whether most of its runs reached the target."""
        return self.seconds.median < inf


@dataclass(frozen=True, kw_only=True)
class ConvergenceResult:
    study: ConvergenceStudy
    job: str
    target: float
    chosen: bool
    """Whether the target was given; else it is just below what the first pair comes to."""
    first: Pair
    """What the others are compared with."""
    rows: tuple[ConvergenceRow, ...]
    """By median time to the target, those that do not reach it last and by their final accuracy."""
    left_out: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """Runs that ended for a reason of the machine or of the code, and are computed anew next time."""

    @property
    def baseline(self) -> ConvergenceRow:
        return next(row for row in self.rows if row.pair == self.first)


def summarize(
    study: ConvergenceStudy,
    job: str,
    cells: Sequence[CellResult],
    *,
    target: float | None = None,
    left_out: Sequence[str] = (),
    broken: Sequence[str] = (),
) -> ConvergenceResult:
    """Rows of the runs that there are; at least one."""
    runs: dict[Pair, list[CellResult]] = {}
    for pair in study.pairs:
        if found := [one for one in cells if one.cell.pair == pair]:
            runs[pair] = found
    first = next(iter(runs))
    aim = _usual_target(list(runs.values())) if target is None else target
    rows = [_row(pair, found, aim) for pair, found in runs.items()]
    return ConvergenceResult(
        study=study,
        job=job,
        target=aim,
        chosen=target is not None,
        first=first,
        rows=tuple(sorted(rows, key=_rank)),
        left_out=tuple(left_out),
        broken=tuple(broken),
    )


def _usual_target(runs: Sequence[Sequence[CellResult]]) -> float:
    """A point below what the first pair comes to in the median, in whole percents; below the best, if that failed."""
    finals = [[one.final for one in found if one.final is not None] for found in runs]
    medians = [median_low(one) for one in finals if one] or [BELOW]
    usual = medians[0] if finals[0] else max(medians)
    return max(1, floor(100 * (usual - BELOW) + 1e-9)) / 100


def _rank(row: ConvergenceRow) -> tuple[float, float]:
    return row.seconds.median, -(row.final.median if row.final else -1.0)


def _row(pair: Pair, runs: Sequence[CellResult], target: float) -> ConvergenceRow:
    reached = [run.reached(target) for run in runs]
    finals = [run.final for run in runs if run.final is not None]
    return ConvergenceRow(
        pair=pair,
        runs=len(runs),
        reached=sum(one is not None for one in reached),
        seconds=Spread.of([one.seconds if one else inf for one in reached]),
        sent=Spread.of([one.sent if one else inf for one in reached]),
        samples=Spread.of([one.samples if one else inf for one in reached]),
        final=Spread.of(finals) if finals else None,
        best=max((one.accuracy for run in runs for one in run.evaluations), default=0.0),
        failures=tuple(f"seed {run.cell.seed}: {run.failure}" for run in runs if run.failure),
        curve=curve_of(runs),
    )


def curve_of(runs: Sequence[CellResult]) -> tuple[MedianEvaluation, ...]:
    """The n-th evaluations of all runs together, for as long as all of them have one; runs that failed are left out."""
    whole = [run.evaluations for run in runs if run.evaluations and not run.failure]
    return tuple(map(_point, zip(*whole, strict=False)))


def _point(alike: Sequence[Evaluation]) -> MedianEvaluation:
    accuracies = [one.accuracy for one in alike]
    return MedianEvaluation(
        seconds=median(one.seconds for one in alike),
        sent=median(one.sent for one in alike),
        samples=median(one.samples for one in alike),
        accuracy=median(accuracies),
        low=min(accuracies),
        high=max(accuracies),
    )

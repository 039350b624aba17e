"""What a sweep finds: medians over repeats, what they are compared with, and what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median

from paceline.records.load import HostLoad, disturbance
from paceline.records.spans import StepBreakdown
from paceline.studies.grid import Spread
from paceline.studies.scaling.folder import SCHEMA, CellPlan, RepeatResult, SweepFolder
from paceline.studies.scaling.study import Sweep, SweepCell, SweepRun

__all__ = ["SCHEMA", "SweepResult", "SweepRow", "read_sweep", "summarize_sweep"]

FAR = 0.15
"""How far a repeat's step is from the median of its cell before it is named, as a part of it."""
ENOUGH = 3
"""Repeats below which none of them is the odd one out."""


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Seconds an epoch: computing, and all else."""

    compute: float
    communicate: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Why Tn - T1/n is not what spans call communication and waiting, in seconds an epoch; the parts add up to it."""

    contention: float
    """Computing takes longer beside other workers than alone."""
    smaller_batch: float
    """With strong scaling: n parts of a batch take longer to compute, one by one, than the whole."""
    rest: float
    """What lies between the parts of a step."""

    @property
    def total(self) -> float:
        return self.contention + self.smaller_batch + self.rest


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A repeat that is far from the others of its cell."""

    run: SweepRun
    factor: float
    """Its typical step over the median of its cell."""
    loads: tuple[HostLoad, ...]

    @property
    def disturbance(self) -> str:
        """What else computed meanwhile, in a sentence; empty where nothing did."""
        return disturbance(self.loads, "it")


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One cell over its repeats. What is in seconds or samples rests on typical steps, without warm-up.

    Where something else computed during some of the repeats, the others alone count.
    """

    cell: SweepCell
    repeats: int
    """That count."""
    step: StepBreakdown
    """Of the repeat in the middle, so that its parts add up."""
    seconds: Spread
    """A step."""
    rate: Spread
    """Samples a second, of all workers and processes; in the middle, that of the repeat whose step this is."""
    epoch: float
    """Seconds an epoch, without evaluations and checkpoints."""
    speed_ups: Spread
    """The rate over that of what it is compared with (``Sweep.base``) in the same repeat, which ran just before."""
    efficiency: float
    """Of each worker or process: 1 is as fast as it would be alone."""
    by_spans: TimeSplit
    by_difference: TimeSplit
    """T1/n and Tn - T1/n."""
    difference: Difference
    contention: float
    """How many times as long computing a step takes as with the same batch alone."""
    hidden: float
    """Seconds an epoch of transfers behind backward, in none of the sums."""
    bandwidth: float | None
    """Bytes a second that a worker sends while it communicates, hidden or not: at least 2 (n-1)/n of all gradients."""
    link: float | None
    """Bytes a second that the link allows such an all-reduce."""
    whole: float
    """Mean seconds a step with checkpoints."""
    checkpoint: float
    """Seconds of one checkpoint."""
    checkpoints: float
    """A step, in these runs: they may be shorter than the cadence, and each of them saves at its last step."""
    checkpoint_every: int
    """Steps between two checkpoints of a long run; 0 where none are saved."""
    checkpoint_bytes: int
    cpu_percent: float | None
    memory_bytes: float | None
    plan: CellPlan | None

    @property
    def speed_up(self) -> float:
        return self.speed_ups.median

    @property
    def error(self) -> float | None:
        """Predicted less measured speed-up; None for what others are compared with, whose speed-up is 1."""
        if self.plan is None or self.plan.speed_up is None:
            return None
        return self.plan.speed_up - self.speed_up

    @property
    def rate_error(self) -> float | None:
        """Predicted over measured samples a second, less 1."""
        if self.plan is None or self.plan.rate is None:
            return None
        return self.plan.rate / self.rate.median - 1


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    sweep: Sweep
    parameters: int
    rows: tuple[SweepRow, ...]
    """In the order of the cells; one without a finished repeat is missing."""
    outliers: tuple[Outlier, ...]
    disturbed: tuple[SweepRun, ...]
    """Repeats during which something else computed."""
    broken: tuple[str, ...] = ()

    def row(self, cell: SweepCell) -> SweepRow | None:
        return next((row for row in self.rows if row.cell == cell), None)

    def compared(self) -> list[SweepRow]:
        """Rows that are not what they are compared with."""
        return [row for row in self.rows if self.sweep.base(row.cell) != row.cell]

    @property
    def speed_up_error(self) -> float | None:
        """Median error of predicted speed-ups, in points: 0.05 is 1.50 predicted and 1.55 measured."""
        errors = [abs(row.error) for row in self.compared() if row.error is not None]
        return median(errors) if errors else None

    @property
    def rate_error(self) -> float | None:
        """Median error of the predicted samples a second of one worker, as a part of them."""
        rows = [row for row in self.rows if row.cell.workers * row.cell.processes == 1]
        errors = [abs(row.rate_error) for row in rows if row.rate_error is not None]
        return median(errors) if errors else None


def read_sweep(path: Path) -> SweepResult:
    """What the folder of a sweep holds, also of one that is not done; code that its runs did not have is refused."""
    folder = SweepFolder(path)
    return summarize_sweep(folder.read(trusted=True), folder)


def summarize_sweep(sweep: Sweep, folder: SweepFolder, broken: Sequence[str] = ()) -> SweepResult:
    """Rows of the cells that were measured at least once, and whose base was."""
    found = folder.done(sweep, sweep.runs)
    repeats: dict[SweepCell, list[RepeatResult]] = {}
    for run, result in found.items():
        repeats.setdefault(run.cell, []).append(result)
    if sweep.kind == "processes":
        repeats = {cell: [_as_mean(one) for one in results] for cell, results in repeats.items()}
    counted = {cell: _undisturbed(results) for cell, results in repeats.items()}
    middles = {cell: middle(results) for cell, results in counted.items()}
    rows = [
        _row(sweep, cell, counted[cell], counted[base], middles[reference], folder.plan(sweep, cell))
        for cell in sweep.cells
        if cell in middles
        and (base := sweep.base(cell)) in middles
        and (reference := sweep.reference(cell)) in middles
    ]
    return SweepResult(
        sweep=sweep,
        parameters=max((one.parameters for one in found.values()), default=0),
        rows=tuple(rows),
        outliers=tuple(one for results in repeats.values() for one in _outliers(results)),
        disturbed=tuple(run for run, result in found.items() if result.disturbed),
        broken=tuple(broken),
    )


def _undisturbed(results: Sequence[RepeatResult]) -> list[RepeatResult]:
    """Those during which nothing else computed, where there are any."""
    return [one for one in results if not one.disturbed] or list(results)


def _as_mean(result: RepeatResult) -> RepeatResult:
    """By all steps: where processes share cores, few steps are interrupted for long, and a typical one is not."""
    factor = result.rate / result.mean_rate
    return replace(result, rate=result.mean_rate, step=result.step * factor)


def middle(results: Sequence[RepeatResult]) -> RepeatResult:
    """The repeat whose rate is the median; of an even number, the faster one beside it."""
    return sorted(results, key=lambda one: one.rate)[len(results) // 2]


def _outliers(results: Sequence[RepeatResult]) -> list[Outlier]:
    if len(results) < ENOUGH:
        return []
    usual = median(one.step.total for one in results)
    factors = [(one, one.step.total / usual) for one in results]
    return [
        Outlier(run=one.cell, factor=factor, loads=one.loads)
        for one, factor in factors
        if factor > 1 + FAR or factor < 1 / (1 + FAR)
    ]


def _row(
    sweep: Sweep,
    cell: SweepCell,
    results: Sequence[RepeatResult],
    bases: Sequence[RepeatResult],
    alone: RepeatResult,
    plan: CellPlan | None,
) -> SweepRow:
    """``bases`` are what it is compared with, ``alone`` one worker with the batch that each of this cell has."""
    usual, base = middle(results), middle(bases)
    ratios = _ratios(results, bases)
    step, like = usual.step, base.cell.cell
    many = cell.workers * cell.processes / (like.workers * like.processes)
    steps = sweep.samples / (usual.samples * cell.workers)
    epoch = sweep.samples / usual.rate
    ideal = sweep.samples / base.rate / many
    transfer = usual.transfer
    return SweepRow(
        cell=cell,
        repeats=len(results),
        step=step,
        seconds=Spread.of([one.step.total for one in results]),
        rate=replace(Spread.of([one.rate for one in results]), median=usual.rate),
        epoch=epoch,
        speed_ups=ratios,
        efficiency=ratios.median / many,
        by_spans=TimeSplit(
            compute=steps * (step.compute + step.other), communicate=steps * (step.communicate + step.wait)
        ),
        by_difference=TimeSplit(compute=ideal, communicate=epoch - ideal),
        difference=_difference(sweep, cell, usual, base, alone),
        contention=step.compute / alone.step.compute,
        hidden=steps * step.hidden,
        bandwidth=usual.sent / transfer if usual.sent and transfer else None,
        link=plan.link if plan else None,
        whole=median(one.whole for one in results),
        checkpoint=median(one.checkpoint for one in results),
        checkpoints=usual.checkpoints / usual.steps,
        checkpoint_every=cell.checkpoint.in_steps(ceil(steps)),
        checkpoint_bytes=usual.checkpoint_bytes,
        cpu_percent=_median([one.cpu_percent for one in results]),
        memory_bytes=_median([one.memory_bytes for one in results]),
        plan=plan,
    )


def _ratios(results: Sequence[RepeatResult], bases: Sequence[RepeatResult]) -> Spread:
    """Of rates, repeat by repeat: a machine may be slower in one minute than in the next, and both are so together."""
    by_repeat = {one.cell.repeat: one.rate for one in bases}
    pairs = [one.rate / by_repeat[one.cell.repeat] for one in results if one.cell.repeat in by_repeat]
    usual = middle(bases).rate
    return Spread.of(pairs or [one.rate / usual for one in results])


def _difference(
    sweep: Sweep, cell: SweepCell, usual: RepeatResult, base: RepeatResult, alone: RepeatResult
) -> Difference:
    steps = sweep.samples / (usual.samples * cell.workers)
    contention = steps * (usual.step.compute - alone.step.compute)
    whole = sweep.samples / (cell.workers * base.rate)
    by_parts = sweep.samples / (cell.workers * alone.rate)
    return Difference(
        contention=contention,
        smaller_batch=by_parts - whole,
        rest=steps * (usual.step.other - alone.step.other),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None

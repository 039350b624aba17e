"""Runs and predictions side by side: which is faster for each sample, by how much, and what explains most of it."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from math import hypot, log
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from paceline.errors import UsageError
from paceline.records.events import sample_events
from paceline.records.files import from_document, read_json
from paceline.records.load import disturbance
from paceline.records.spans import StepBreakdown, StepRecord, TimeLedger
from paceline.studies.findings.find import Diagnosis
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.predict.forecast import RunForecast
from paceline.studies.predict.prediction import Prediction, PredictionRow
from paceline.studies.recorded import RecordedRun, read_recorded

STRETCHES = 8
"""Parts of a run, one after the other, whose typical steps are compared for the spread."""
MOST_RANKS = 4
"""Of whose records the spread is taken."""
SIGMAS = 2.0
"""A difference counts where it is more than this many standard deviations."""
IN_80_PERCENT = 1.2816
"""Standard deviations from the middle to an end of an 80 % interval."""
SAME_BATCH = 0.01
OTHER_RANK = 1.2
"""How many times as uneven the ranks of the slower run are before a slow rank explains the difference."""

MODEL_SIZE = "number of parameters"
UNKNOWN_SPREAD = "How much its steps vary is not known: its record of steps is gone or too short."

Group = Literal["communication", "waiting", "computing", "data", "the rest", "a slow rank"]
Source = Literal["live", "virtual", "prediction"]
PredictedSide = tuple[str, int | None, PredictionRow]
"""Its name, the number of parameters where it is known, and the row."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One side: a run, or what was predicted of one."""

    name: str
    source: Source
    workers: int
    step: StepBreakdown
    """The typical step, the mean over workers."""
    spread: StepBreakdown
    """Standard deviation of each part between stretches of the run; zero for the parts of a prediction."""
    total_spread: float | None
    """None where it is not known."""
    rate: float
    """Samples a second of all workers, in steps."""
    sent: float
    epoch: float | None = None
    """Samples of an epoch; None where it is not known, as of a script."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What has to be alike for a comparison to mean what it seems to."""
    doubts: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    """None of a prediction."""

    @property
    def samples(self) -> float:
        """Of a step of all workers."""
        return self.rate * self.step.total

    @property
    def sample(self) -> StepBreakdown:
        """Where the time of one sample goes; the parts add up to 1 / ``rate``."""
        return self.step * (1 / self.samples)

    @property
    def run(self) -> RecordedRun | None:
        return self.diagnosis.seen.run if self.diagnosis else None

    @property
    def relative_spread(self) -> float | None:
        return None if self.total_spread is None else self.total_spread / self.step.total


@dataclass(frozen=True, kw_only=True)
class SpeedDifference:
    """A later side against the first one."""

    first: ComparedRun
    other: ComparedRun

    @cached_property
    def ratio(self) -> float:
        """How many times as long a sample takes."""
        return self.first.rate / self.other.rate

    @cached_property
    def spread(self) -> float | None:
        """Of the ratio's logarithm; None where that of one side is not known."""
        first, other = self.first.relative_spread, self.other.relative_spread
        return None if first is None or other is None else hypot(first, other)

    @property
    def significant(self) -> bool:
        """Whether it is known to be more than the spread."""
        return self.spread is not None and abs(log(self.ratio)) > SIGMAS * self.spread

    def exceeds(self, slowdown: float) -> bool:
        return self.significant and self.ratio > 1 + slowdown

    @property
    def slower(self) -> ComparedRun:
        return self.other if self.ratio > 1 else self.first

    @property
    def faster(self) -> ComparedRun:
        return self.first if self.ratio > 1 else self.other

    @cached_property
    def cause(self) -> tuple[Group, float]:
        """What explains most of it, and its share of all that is slower by it."""
        longer = self._longer()
        if self._by_slow_rank:
            longer["a slow rank"] = longer.pop("computing") + longer.pop("waiting")
        gross = sum(seconds for seconds in longer.values() if seconds > 0)
        name = max(longer, key=lambda one: longer[one])
        return name, longer[name] / gross if gross else 0.0

    def _longer(self) -> dict[Group, float]:
        """Seconds a sample that each group takes longer in the slower one."""
        slower, faster = groups(self.slower.sample), groups(self.faster.sample)
        return {name: slower[name] - faster[name] for name in slower}

    @property
    def _by_slow_rank(self) -> bool:
        """A rank that is slow computes longer itself, and the others wait for it."""
        mine, other = self.slower.diagnosis, self.faster.diagnosis
        if mine is None or not mine.has_slow_rank:
            return False
        return mine.seen.slowdown > OTHER_RANK * (other.seen.slowdown if other else 1.0)


def groups(step: StepBreakdown) -> dict[Group, float]:
    return {
        "communication": step.communicate,
        "waiting": step.wait,
        "computing": step.forward + step.backward + step.apply,
        "data": step.data,
        "the rest": step.other,
    }


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    sides: tuple[ComparedRun, ...]

    @property
    def differences(self) -> list[SpeedDifference]:
        first, *others = self.sides
        return [SpeedDifference(first=first, other=other) for other in others]

    @property
    def same_batch(self) -> bool:
        sizes = [side.samples for side in self.sides]
        return max(sizes) - min(sizes) <= SAME_BATCH * max(sizes)

    @property
    def epoch(self) -> float | None:
        """Samples of an epoch, where all runs know it and agree; a prediction has the epoch of the runs beside it."""
        if any(side.epoch is None and side.source != "prediction" for side in self.sides):
            return None
        known = {round(side.epoch) for side in self.sides if side.epoch}
        return float(known.pop()) if len(known) == 1 else None

    @property
    def slowest(self) -> ComparedRun | None:
        """The slowest side, where it differs from another by more than the spread."""
        side = min(self.sides, key=lambda one: one.rate)
        others = (SpeedDifference(first=other, other=side) for other in self.sides if other is not side)
        return side if any(one.significant for one in others) else None

    @property
    def unlike(self) -> list[tuple[str, ComparedRun, str, str]]:
        """Conditions that differ from the first one's: name, side, its value, the first's."""
        first, *others = self.sides
        return [
            (name, other, other.conditions[name], value)
            for other in others
            for name, value in first.conditions.items()
            if name in other.conditions and other.conditions[name] != value
            # Of two runs it is known what they train; a prediction only says how large it is.
            if not (name == MODEL_SIZE and "job" in first.conditions and "job" in other.conditions)
        ]


def compare(given: Sequence[Path | RecordedRun | Prediction]) -> RunComparison:
    """Of runs and predictions, or paths that hold them.

    A prediction of several numbers of workers stands for those that the runs have.
    """
    read = [read_recorded(one) if isinstance(one, Path) and one.is_dir() else one for one in given]
    wanted = {one.config.settings.workers for one in read if isinstance(one, RecordedRun)}
    sides = [side for one in read for side in _sides(one, wanted)]
    if len(sides) < 2:
        alone = (
            f"{sides[0].name} has nothing to be compared with" if sides else "there is nothing to be compared"
        )
        raise UsageError(f"{alone}: name two or more run folders or predictions")
    return RunComparison(sides=tuple(sides))


def _sides(one: Path | RecordedRun | Prediction, wanted: set[int]) -> list[ComparedRun]:
    if isinstance(one, RecordedRun):
        return [compared_run(str(one.folder.path), one)]
    if isinstance(one, Prediction):
        return _chosen(_rows_of(_called(one), one), wanted)
    return _of_file(one, wanted)


def _called(prediction: Prediction) -> str:
    """Its model, and on what: the same model is predicted on several devices and networks to compare them."""
    where = [prediction.settings[name] for name in ("device", "network") if name in prediction.settings]
    return f"{prediction.name} on {' over '.join(where)}" if where else prediction.name


def compared_run(name: str, run: RecordedRun) -> ComparedRun:
    seen = ObservedSteps.of(run)
    if seen is None:
        raise UsageError(
            f"{name} is too short to be compared: it has no typical step; train for 6 steps or more"
        )
    spread, total = _spread(run)
    summary = run.summary
    unknown = "" if total is not None else UNKNOWN_SPREAD
    return ComparedRun(
        name=name,
        source="live" if summary.runtime == "live" else "virtual",
        workers=len(seen.workers),
        step=seen.mean,
        spread=spread,
        total_spread=total,
        rate=seen.rate,
        sent=seen.sent,
        epoch=summary.samples / summary.epochs if summary.epochs else None,
        conditions=_conditions(run),
        doubts=tuple(note for note in (disturbance(summary.loads), unknown) if note),
        diagnosis=Diagnosis(seen),
    )


def _conditions(run: RecordedRun) -> dict[str, str]:
    settings, job = run.config.settings, run.config.settings.job
    known: dict[str, Any] = {
        "job": job.path or f"{job.model} on {job.data}",
        MODEL_SIZE: f"{run.summary.parameters:,}",
        "precision": job.precision or "fp32",
        "batch a worker": ",".join(
            str(size * (job.accumulate or 1)) for size in sorted({*settings.batch_sizes})
        ),
        "mini-batches a step": job.accumulate or 1,
        "threads a worker": run.config.machinery.get("threads"),
        "device": run.config.machinery.get("device"),
        "runtime": run.summary.runtime,
        "processor": run.environment.get("cpu"),
        "usable cores": run.environment.get("usable_cores"),
        "torch": run.environment.get("torch"),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def _spread(run: RecordedRun) -> tuple[StepBreakdown, float | None]:
    """Of each part, and of whole steps: the standard deviation between stretches, the mean over some ranks.

    Zero and None where there are no records of two stretches or more.
    """
    found = []
    for _, file in sorted(run.folder.event_files().items())[:MOST_RANKS]:
        steps = [step for step in map(_typical, _stretches(file)) if step.total]
        if len(steps) > 1:
            each = StepBreakdown(*(pstdev(part) for part in zip(*map(astuple, steps), strict=True)))
            found.append((each, pstdev(step.total for step in steps)))
    if not found:
        return StepBreakdown(), None
    parts = sum((one for one, _ in found), StepBreakdown()) * (1 / len(found))
    return parts, fmean(total for _, total in found)


def _stretches(file: Path) -> list[list[StepRecord]]:
    blocks = sample_events(file)
    each = max(1, -(-len(blocks) // STRETCHES))
    starts = range(0, len(blocks), each)
    return [[record for block in blocks[at : at + each] for record in block] for at in starts]


def _typical(records: Sequence[StepRecord]) -> StepBreakdown:
    ledger = TimeLedger()
    for record in records:
        if record.is_step and not record.warm_up:
            ledger.add(record)
    return ledger.totals().typical


def _of_file(path: Path, wanted: set[int]) -> list[ComparedRun]:
    """A side for each row of a prediction: those with as many workers as a run has, else all."""
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a run folder, or the file of a prediction")
    return _chosen(_rows(path), wanted)


def _chosen(rows: list[PredictedSide], wanted: set[int]) -> list[ComparedRun]:
    chosen = [one for one in rows if one[-1].workers in wanted] or rows
    return [_of_row(*one) for one in chosen]


def _rows(path: Path) -> list[PredictedSide]:
    """Names, the number of parameters where it is known, and rows."""
    document = read_json(path)
    kind = document.get("kind") if isinstance(document, dict) else None
    try:
        if kind == "forecast":
            row = from_document(document, RunForecast).row
            if row is None:
                raise UsageError(
                    f"{path} predicts no step: no profile of the machine was there when it was made"
                )
            return [(f"{path}", None, row)]
        if kind == "prediction":
            return _rows_of(str(path), from_document(document, Prediction))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{path} is a prediction of another version of paceline ({error}); predict again"
        ) from error
    raise UsageError(f"{path} is no prediction: name a run folder, or a file that 'paceline predict' wrote")


def _rows_of(name: str, prediction: Prediction) -> list[PredictedSide]:
    return [
        (
            f"{name} ({one.strategy}, {row.workers} worker{'s' * (row.workers > 1)})",
            prediction.parameters,
            row,
        )
        for one in prediction.series
        for row in one.rows
    ]


def _of_row(name: str, parameters: int | None, row: PredictionRow) -> ComparedRun:
    size = {} if parameters is None else {MODEL_SIZE: f"{parameters:,}"}
    return ComparedRun(
        name=name,
        source="prediction",
        workers=row.workers,
        step=row.breakdown,
        spread=StepBreakdown(),
        total_spread=(row.high - row.low) / 2 / IN_80_PERCENT,
        rate=row.rate,
        sent=row.sent,
        conditions={**size, "batch a worker": str(row.batch)},
    )

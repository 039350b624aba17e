"""A predicted step beside the recorded one, part by part."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown, StepRecord

PARTS = ("data", "forward", "backward", "communicate", "wait", "apply", "other", "hidden")
WARM_UP = 0.1
"""The fraction of a run that does not count: memory is allocated and connections are opened."""


class PartScore(NamedTuple):
    """One part of a step, in seconds."""

    part: str
    predicted: float
    recorded: float

    @property
    def error(self) -> float | None:
        """Predicted over recorded, less 1; None where nothing was recorded."""
        return self.predicted / self.recorded - 1 if self.recorded > 0 else None


def compare_parts(predicted: StepBreakdown, folder: RunFolder) -> tuple[PartScore, ...]:
    """The parts of a predicted step and the whole of it, beside a run's record.

    Recorded is the mean of all workers' steps after the first tenth; evaluations and checkpoints are no steps.
    """
    steps = [step for path in folder.event_files().values() for step in _steps(list(read_events(path)))]
    if not steps:
        raise UsageError(f"{folder.path} holds no recorded steps; give the folder of a run that trained")
    means = {part: fmean(_seconds(step, part) for step in steps) for part in PARTS}
    recorded = StepBreakdown(**means)
    rows = [PartScore(part, getattr(predicted, part), getattr(recorded, part)) for part in PARTS]
    return (*rows, PartScore("step", predicted.total, recorded.total))


def _steps(records: Sequence[StepRecord]) -> Sequence[StepRecord]:
    steps = [record for record in records if record.is_step]
    return steps[max(1, int(WARM_UP * len(steps))) :]


def _seconds(step: StepRecord, part: str) -> float:
    if part == "hidden":
        return sum(span.length for span in step.hidden)
    return sum(span.length for span in step.spans if span.kind == part)


def parts_table(rows: Sequence[PartScore]) -> str:
    """Milliseconds, and the error of each part; a part of nothing is left out."""
    lines = [f"{'part':<12}{'predicted ms':>14}{'recorded ms':>13}{'error':>10}"]
    for row in rows:
        if row.predicted or row.recorded:
            error = "" if row.error is None else f"{100 * row.error:+.0f} %"
            lines.append(f"{row.part:<12}{1e3 * row.predicted:>14.3f}{1e3 * row.recorded:>13.3f}{error:>10}")
    return "\n".join(lines)

"""A prediction beside what happened, part by part."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepRecord
from paceline.studies.predict.base import Step

PARTS = ("data", "forward", "backward", "communicate", "wait", "apply", "other")
WARM_UP = 0.1
"""The part of a run that does not count: memory is allocated and connections find their pace."""


class Scored(NamedTuple):
    """One part of a step, in seconds."""

    part: str
    predicted: float
    recorded: float

    @property
    def error(self) -> float | None:
        """Predicted over recorded, less 1; None where nothing was recorded."""
        return self.predicted / self.recorded - 1 if self.recorded > 0 else None


def compare_parts(prediction: Step, folder: RunFolder) -> tuple[Scored, ...]:
    """The parts of a predicted step, what was hidden behind backward and the whole, beside a run's record.

    Recorded is the mean of all workers' steps after the first tenth; evaluations and checkpoints are no steps. A
    prediction has no "other", the little that lies between the parts.
    """
    steps = [step for path in folder.event_files().values() for step in _steps(list(read_events(path)))]
    if not steps:
        raise UsageError(f"{folder.path} holds no recorded steps; give the folder of a run that trained")
    rows = [
        Scored(part, getattr(prediction, part, 0.0), fmean(_length(step, part) for step in steps))
        for part in PARTS
    ]
    hidden = Scored("hidden", prediction.hidden, fmean(sum(s.length for s in step.hidden) for step in steps))
    whole = Scored("step", prediction.step, sum(row.recorded for row in rows))
    return (*rows, hidden, whole)


def _steps(records: Sequence[StepRecord]) -> Sequence[StepRecord]:
    steps = [record for record in records if record.is_step]
    return steps[max(1, int(WARM_UP * len(steps))) :]


def _length(step: StepRecord, part: str) -> float:
    return sum(span.length for span in step.spans if span.kind == part)


def parts_table(rows: Sequence[Scored]) -> str:
    """For people: milliseconds, and by how much each part was wrong; a part of nothing is left out."""
    lines = [f"{'part':<12}{'predicted ms':>14}{'recorded ms':>13}{'error':>10}"]
    for row in rows:
        if row.predicted or row.recorded:
            error = "" if row.error is None else f"{100 * row.error:+.0f} %"
            lines.append(f"{row.part:<12}{1e3 * row.predicted:>14.3f}{1e3 * row.recorded:>13.3f}{error:>10}")
    return "\n".join(lines)

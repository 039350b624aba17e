"""Given times that somebody measured: the typical step of a recorded run."""

from collections.abc import Iterable
from statistics import median

from paceline.clusters.times import StepTimes
from paceline.errors import Mistake
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepRecord

PARTS = ("data", "forward", "backward", "apply")


def typical_times(folder: RunFolder) -> StepTimes:
    """The median of each part over the steps of rank 0; the first step, which warms up, does not count.

    They hold for the mini-batch that the run had, on the device that it ran on.
    """
    path = folder.events(0)
    if not path.exists():
        raise Mistake(
            f"{folder.path} holds no recorded steps of rank 0; give the folder of a run that trained"
        )
    records = list(read_events(path))
    steps = [record for record in records if record.samples][1:]
    if not steps:
        raise Mistake(f"{folder.path} holds fewer than 2 steps; record a longer run")
    whole = max(record.samples for record in steps)
    parts = {part: _median(_length(r, part) for r in steps if r.samples == whole) for part in PARTS}
    return StepTimes(**parts, checkpoint=_median(_length(r, "checkpoint") for r in records if not r.samples))


def _length(record: StepRecord, kind: str) -> float:
    return sum(span.length for span in record.spans if span.kind == kind)


def _median(values: Iterable[float]) -> float:
    found = [value for value in values if value > 0]
    return median(found) if found else 0.0

"""Steps that were measured: the typical step of a recorded run, and how much and how fast its steps go."""

from collections.abc import Iterable
from math import log
from statistics import fmean, quantiles
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown, StepRecord, TimeLedger

MIDDLE = 1.349
"""Standard deviations between the first and the third quartile of a normal distribution."""


class RecordedStep(NamedTuple):
    step: StepBreakdown
    samples: int
    checkpoint: float = 0.0


def typical_step(folder: RunFolder) -> RecordedStep:
    """The typical step of the recorded worker that computes fastest, over whole mini-batches and without warm-up.

    A worker that was slowed on purpose is thereby left out, unless all were. The little that lies between the parts
    of a step counts as getting its mini-batch.
    """
    if not folder.path.is_dir():
        raise UsageError(f"there is no run folder {folder.path}; give the folder of a run that trained")
    workers = [list(read_events(path)) for path in folder.event_files().values()]
    found = [typical for records in workers if (typical := _typical(records))]
    if not found:
        raise UsageError(
            f"{folder.path} holds fewer than 2 recorded steps; give the folder of a run that trained"
        )
    return min(found, key=lambda one: (one.step.forward + one.step.backward) / one.samples)


def _typical(records: list[StepRecord]) -> RecordedStep | None:
    steps = [record for record in records if record.is_step and not record.warm_up]
    samples = max((record.samples for record in steps), default=0)
    if not samples:
        return None
    ledger = TimeLedger()
    for record in steps:
        if record.samples == samples:
            ledger.add(record)
    usual = ledger.totals().typical
    step = StepBreakdown(
        data=usual.data + usual.other, forward=usual.forward, backward=usual.backward, apply=usual.apply
    )
    return RecordedStep(step, samples, _usual(_length(record, "checkpoint") for record in records))


def check_alone(folder: RunFolder) -> None:
    """Refuse the run of several workers: where they share a machine, their steps are not those of one alone."""
    workers = len(folder.event_files()) if folder.path.is_dir() else 0
    if workers > 1:
        raise UsageError(
            f"{folder.path} is a run of {workers} workers, which slow each other down on one host; give "
            "the folder of a run of one worker"
        )


def recorded_jitter(folder: RunFolder) -> float:
    """How much the recorded worker's steps vary, as ``StepTimes.jitter``, by their interquartile range."""
    records = list(read_events(next(iter(folder.event_files().values()))))
    times = [_length(r, "forward") + _length(r, "backward") for r in records if r.is_step and r.samples]
    logs = [log(time) for time in times[1:] if time > 0]
    if len(logs) < 4:
        return 0.0
    low, _, high = quantiles(logs, n=4)
    return (high - low) / MIDDLE


def usual_pace(folder: RunFolder, together: int = 1) -> float:
    """Seconds from the start of a step to the start of the next, in the record of worker 0, after the first tenth."""
    records = [record for record in read_events(folder.events(0)) if record.is_step]
    whole = max(record.samples for record in records)
    paces = []
    for first in range(max(2, len(records) // 10), len(records) - together, together):
        steps = records[first : first + together + 1]
        if all(step.samples == whole for step in steps[:-1]):
            paces.append((steps[-1].spans[0].start - steps[0].spans[0].start) / together)
    if not paces:
        raise UsageError(
            f"{folder.path} has no {together} steps of whole mini-batches in a row; train for longer"
        )
    return _usual(paces)


def _length(record: StepRecord, kind: str) -> float:
    return sum(span.length for span in record.spans if span.kind == kind)


def _usual(values: Iterable[float]) -> float:
    """The mean without the shortest and the longest tenth."""
    found = sorted(value for value in values if value > 0)
    cut = len(found) // 10
    return fmean(found[cut : len(found) - cut]) if found else 0.0

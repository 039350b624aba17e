"""Measure one repeat: real trainings, each the command that a user would type, and what their records say."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import IO

from paceline.errors import RunFailed
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, LoadMeter
from paceline.records.spans import StepRecord, Totals, mean_typical_step, sent_a_step
from paceline.records.summary import Summary, read_summary
from paceline.runtimes import prctl
from paceline.studies.scaling.folder import RepeatResult
from paceline.studies.scaling.study import SweepRun

LOOK_EVERY = 0.1
PATIENCE = 10.0
"""Seconds that a training gets to end by itself."""
BETWEEN = ("checkpoint", "communicate", "wait", "other")
"""Kinds of time outside of steps that checkpoints cause."""
SAYS = "paceline: "

StartOne = Callable[[Path, IO[bytes]], "subprocess.Popen[str]"]
"""Starts a training whose run folder is made in the given one, and whose words go to the given file."""


def utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def start_command(command: Sequence[str], words: IO[bytes]) -> "subprocess.Popen[str]":
    """In a session of its own: Ctrl-C reaches this process alone, which then ends the training."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=words,
        text=True,
        start_new_session=True,
        preexec_fn=partial(prctl.die_with_parent, signal.SIGTERM),
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredRepeat:
    """The run folders of one repeat, and what else computed meanwhile."""

    begun: str
    folders: tuple[RunFolder, ...]
    loads: tuple[HostLoad, ...]


def train(start: StartOne, parents: Sequence[Path], look: Callable[[], None]) -> MeasuredRepeat:
    """Train once for each of the parents, all at the same time, to the end; ``look`` is called all the while.

    Whatever it raises ends the trainings. Raises RunFailed with the last words of one that fails.
    """
    begun, meter = utc(), LoadMeter(wanted=len(parents))
    for parent in parents:
        parent.mkdir(parents=True)
    with _trainings(start, parents) as running:
        while any(process.poll() is None for process, _ in running):
            look()
            time.sleep(LOOK_EVERY)
        for process, words in running:
            if process.returncode:
                raise RunFailed(_last_words(words) or f"exit code {process.returncode}")
    folders = tuple(RunFolder(next(parent.iterdir())) for parent in parents)
    return MeasuredRepeat(begun=begun, folders=folders, loads=(meter.load(),) if len(parents) > 1 else ())


@contextmanager
def _trainings(
    start: StartOne, parents: Sequence[Path]
) -> "Iterator[list[tuple[subprocess.Popen[str], IO[bytes]]]]":
    running: list[tuple[subprocess.Popen[str], IO[bytes]]] = []
    try:
        for parent in parents:
            words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed below
            running.append((start(parent, words), words))
        yield running
    finally:
        for process, _ in running:
            if process.poll() is None:
                process.terminate()
        for process, file in running:
            _end(process)
            file.close()


def _end(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(file: IO[bytes]) -> str:
    """Why a training failed, where it says so, else the last that it said."""
    file.seek(0)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(SAYS)] or lines
    return causes[-1].removeprefix(SAYS) if causes else ""


def read_repeat(run: SweepRun, measured: MeasuredRepeat) -> RepeatResult:
    """What the records of one repeat's trainings say."""
    summaries = [read_summary(folder) for folder in measured.folders]
    workers = [totals for summary in summaries for totals in summary.totals if totals.steps]
    typical = [totals.typical for totals in workers]
    files = [path for folder in measured.folders for path in folder.event_files().values()]
    records = [list(read_events(path)) for path in files]
    samples = [max(record.samples for record in found) for found in records]
    times, size = _checkpoints(records, measured.folders[0])
    first = summaries[0]
    return RepeatResult(
        cell=run,
        begun=measured.begun,
        steps=first.steps,
        parameters=first.parameters,
        samples=fmean(samples),
        step=mean_typical_step(workers),
        slowest=max(step.total for step in typical),
        rate=sum(many / step.total for many, step in zip(samples, typical, strict=True)),
        mean_rate=sum(map(_mean_rate, workers)),
        sent=sent_a_step(workers),
        transfer=min(step.communicate + step.hidden for step in typical),
        whole=fmean(map(_whole, workers)),
        checkpoint=fmean(times) if times else 0.0,
        checkpoints=len(times) // len(workers),
        checkpoint_bytes=size,
        cpu_percent=_mean([summary.cpu_percent for summary in summaries]),
        memory_bytes=_mean([summary.memory_bytes for summary in summaries]),
        loads=measured.loads or tuple(first.loads),
    )


def _mean_rate(totals: Totals) -> float:
    samples, seconds = totals.samples - totals.warm_up_samples, totals.in_steps.total
    return samples / seconds if seconds else totals.samples / totals.in_warm_up.total


def _whole(totals: Totals) -> float:
    between = sum(totals.outside.get(kind, 0.0) for kind in BETWEEN)
    return (totals.in_steps.total + between) / max(1, totals.steps - totals.warm_up_steps)


def _checkpoints(workers: Sequence[Sequence[StepRecord]], folder: RunFolder) -> tuple[list[float], int]:
    """The seconds of every checkpoint of every worker, and the bytes of the last one of a training."""
    saved, times = sorted(folder.checkpoints.glob("step-*")), list[float]()
    if not saved:
        return times, 0
    for records in workers:
        found = ((record.step, _checkpoint_seconds(record)) for record in records if not record.is_step)
        # At the last step, the model is exported before the checkpoint is saved.
        times += dict(one for one in found if one[1]).values()
    return times, sum(file.stat().st_size for file in saved[-1].iterdir())


def _checkpoint_seconds(record: StepRecord) -> float:
    return sum(span.length for span in record.spans if span.kind == "checkpoint")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def pilot_step(summary: Summary) -> float:
    return mean_typical_step(summary.totals).total

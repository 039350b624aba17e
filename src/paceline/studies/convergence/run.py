"""Run a study: every cell in a process of its own, several at a time; what is done already is not run again.

A cell is a simulation with true gradients, of which the evaluations are kept with what training took until each.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from paceline.errors import RunFailed, raised
from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.records.events import MetricsRow
from paceline.records.load import usable_cores
from paceline.records.spans import StepRecord
from paceline.records.summary import Observer, Started
from paceline.runtimes import prctl
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.result import CellResult, ConvergenceResult, Evaluation, summarize
from paceline.studies.convergence.study import ConvergenceStudy, GridCell, Selection
from paceline.studies.grid import Show, held_interrupts

PROGRESS_EVERY = 0.25
"""Seconds between two looks at a run's progress."""


def run_study(
    study: ConvergenceStudy,
    selection: Selection,
    folder: StudyFolder,
    *,
    target: float | None = None,
    processes: int | None = None,
    show: Show = lambda _, __: None,
) -> ConvergenceResult:
    """Run what the folder lacks, and sum up; the result does not depend on the number of processes.

    On KeyboardInterrupt the processes are ended, and what is done is kept. Raises RunFailed where no run was kept.
    """
    folder.open(study)
    cells = selection.cells(study.seeds)
    done = folder.done(study, cells)
    missing = [cell for cell in cells if cell not in done]
    broken = CellPool(study, selection.job, folder, processes or usable_cores()).run(
        missing, len(cells), show
    )
    results = list(folder.done(study, cells).values())
    if not results:
        raise RunFailed(f"no run was finished; {broken[0]}")
    name, left_out = selection.job.name, selection.left_out
    return summarize(study, name, results, target=target, left_out=left_out, broken=broken)


class CellPool:
    """A process a cell, so many at once. A cell is kept by its own process, whole or not at all."""

    def __init__(self, study: ConvergenceStudy, job: Job, folder: StudyFolder, processes: int) -> None:
        self._study, self._folder, self._processes = study, folder, processes
        # A fork has the job and its data already; elsewhere a process is a new interpreter, and builds its own.
        forks = sys.platform == "linux"
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._job: Callable[[], Job] = (
            partial(_same, job) if forks else partial(build_job, study.settings.job)
        )
        self._running: dict[Connection[Any, Any], tuple[GridCell, BaseProcess]] = {}
        self._parts: dict[GridCell, float] = {}
        self._broken: dict[GridCell, str] = {}

    def run(self, cells: Sequence[GridCell], total: int, show: Show) -> list[str]:
        """Run all of these cells; return a sentence for each that ended without a result. ``total`` is for ``show``."""
        waiting = list(reversed(cells))
        try:
            with held_interrupts() as check_interrupt:
                while waiting or self._running:
                    self._go_on(waiting)
                    check_interrupt()
                    ended = len(cells) - len(waiting) - len(self._running)
                    words = ", ".join(str(cell) for cell, _ in self._running.values())
                    done = (ended + sum(self._parts.values())) / len(cells)
                    show(done, f"{total - len(cells) + ended}/{total} runs  {words}"[:70])
        finally:
            self._end()
        return [f"{cell}: {why}" for cell, why in self._broken.items()]

    def _go_on(self, waiting: list[GridCell]) -> None:
        """Start what there is room for, and hear what the processes have to say, for a moment."""
        while waiting and len(self._running) < self._processes:
            self._start(waiting.pop())
        for line in wait(list(self._running), timeout=PROGRESS_EVERY):
            assert isinstance(line, Connection)
            self._hear(line)

    def _start(self, cell: GridCell) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_work, args=(self._study, cell, self._job, self._folder, theirs), name=f"paceline: {cell}"
        )
        sys.stdout.flush()
        process.start()
        theirs.close()
        self._running[ours] = cell, process
        self._parts[cell] = 0.0

    def _hear(self, line: "Connection[Any, Any]") -> None:
        cell, process = self._running[line]
        try:
            heard = line.recv()
        except (EOFError, OSError):
            process.join()
            self._forget(line)
            if not self._folder.done(self._study, [cell]):
                self._broken.setdefault(cell, _ending(process.exitcode or 0))
            return
        if isinstance(heard, str):
            self._broken[cell] = heard
        else:
            self._parts[cell] = heard

    def _forget(self, line: "Connection[Any, Any]") -> None:
        cell, _ = self._running.pop(line)
        self._parts.pop(cell)
        line.close()

    def _end(self) -> None:
        for line, (_, process) in list(self._running.items()):
            process.kill()
            process.join()
            self._forget(line)


def _same(job: Job) -> Job:
    return job


def _ending(code: int) -> str:
    """How a process went that left no result and no word."""
    return f"killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"


def _work(
    study: ConvergenceStudy,
    cell: GridCell,
    make_job: Callable[[], Job],
    folder: StudyFolder,
    line: "Connection[Any, Any]",
) -> None:
    """Be the process of one cell: send the part that is done from time to time, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    prctl.die_with_parent()
    torch.set_num_threads(1)  # as a live worker's, so that sums come out alike to the last bit
    due = time.monotonic() + PROGRESS_EVERY

    def tell(part: float) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + PROGRESS_EVERY
            line.send(part)

    try:
        result: CellResult = run_cell(study, cell, make_job(), tell)
        folder.keep(study, result)
    except Exception as error:
        with suppress(OSError):
            line.send(raised(error))
        os._exit(1)


@dataclass(slots=True)
class TrainingLedger:
    """What one worker's steps have taken so far."""

    begun: float = 0.0
    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    samples: int = 0
    steps: int = 0

    def add(self, record: StepRecord) -> None:
        if not self.steps and record.spans:
            self.begun = record.spans[0].start
        self.steps += 1
        self.seconds += sum([span.length for span in record.spans])
        self.sent += record.sent
        self.received += record.received
        self.samples += record.samples


class CellRecorder(SimulationRecorder, Observer):
    """Adds up every worker's steps, and nothing else: what lies between steps is not training.

    With servers, what a worker receives is what a server has sent to it.
    """

    detailed = True

    def __init__(self, workers: int, served: bool, progress: Callable[[float], None]) -> None:
        self._workers = [TrainingLedger() for _ in range(workers)]
        self._served, self._progress, self._last = served, progress, 1
        self.evaluations: list[Evaluation] = []

    def started(self, run: Started) -> None:
        self._last = run.last_step

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:  # noqa: ARG002
        self._progress(progress / self._last)

    def recorded(self, rank: int, record: StepRecord) -> None:
        if record.is_step:
            self._workers[rank].add(record)

    def evaluated(self, row: MetricsRow) -> None:
        if row.test_loss is None or not isfinite(row.test_loss):
            return  # it has diverged, and says so next
        workers = self._workers
        self.evaluations.append(
            Evaluation(
                # Where workers differ, an evaluation is due when the slowest of them has got there.
                seconds=max(one.begun + one.seconds for one in workers),
                sent=sum(one.sent + one.received * self._served for one in workers),
                samples=sum(one.samples for one in workers),
                accuracy=row.metrics["accuracy"],
                loss=row.test_loss,
            )
        )


def run_cell(
    study: ConvergenceStudy, cell: GridCell, job: Job, progress: Callable[[float], None] = lambda _: None
) -> CellResult:
    """Simulate one run to its end; one that diverges, or whose strategy gets stuck, is a result as well.

    ``progress`` gets the part of the run that is done, after every step.
    """
    prepared = study.prepared(cell, job)
    recorder = CellRecorder(prepared.settings.workers, prepared.strategy.served, progress)
    costs = replace(study.costs(prepared.settings), applying=prepared.learners)
    failure = ""
    try:
        simulate(Simulation(prepared, study.cluster, costs, observer=recorder, recorder=recorder))
    except RunFailed as failed:
        failure = str(failed)
    return CellResult(cell=cell, evaluations=tuple(recorder.evaluations), failure=failure)

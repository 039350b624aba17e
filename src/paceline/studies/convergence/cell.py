"""One run of a study: simulated with true gradients, its evaluations kept with what training took until each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite

from paceline.errors import RunFailed
from paceline.jobs.job import Job
from paceline.records.events import MetricsRow
from paceline.records.spans import StepRecord
from paceline.records.summary import Observer, Started
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.studies.convergence.result import CellResult, Evaluation
from paceline.studies.convergence.study import ConvergenceStudy, GridCell


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

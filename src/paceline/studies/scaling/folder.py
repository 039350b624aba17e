"""The folder of a sweep: a small file for every repeat, a plan for every cell, and runs that are still needed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.jobs.repeated import SOURCE
from paceline.jobs.spec import JobSpec
from paceline.records.files import to_document, write_sealed
from paceline.records.load import HostLoad
from paceline.records.spans import StepBreakdown
from paceline.runtimes.settings import Settings
from paceline.studies.grid import GridFolder, read_kept
from paceline.studies.predict.prediction import PredictionRow
from paceline.studies.scaling.study import Sweep, SweepCell, SweepRun

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RepeatResult:
    """One repeat, as its run's record has it; of several processes, their mean, and the sum of their rates."""

    cell: SweepRun
    begun: str
    """UTC; later than ``CellPlan.made``."""
    steps: int
    """Of each worker."""
    parameters: int
    samples: float
    """Of a worker's whole step; the last one of an epoch may have fewer."""
    step: StepBreakdown
    """The typical step, the mean of all workers: without warm-up, and its parts add up."""
    slowest: float
    """The longest typical step of any worker."""
    rate: float
    """Samples a second in typical steps, of all workers and processes."""
    mean_rate: float
    """The same in all steps after the warm-up, also those that were interrupted by other processes."""
    sent: float
    """Bytes a step and worker."""
    transfer: float
    """Seconds a step in which data was moved, hidden or not, of the worker that waited least for it."""
    whole: float
    """Mean seconds a step with what lies between steps: checkpoints, and what is exchanged for them."""
    checkpoint: float = 0.0
    """Seconds of one checkpoint."""
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    """Of one checkpoint, all workers' files."""
    cpu_percent: float | None = None
    """Of one core, of a worker."""
    memory_bytes: float | None = None
    """The most of a worker."""
    loads: tuple[HostLoad, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether something else computed meanwhile."""
        return any(load.disturbed for load in self.loads)


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """What was settled about a cell before its first repeat."""

    cell: SweepCell
    steps: int | None
    """Of each run; None is as the settings say."""
    made: str
    """UTC."""
    row: PredictionRow | None = None
    """What is predicted of a run; None where nothing could be."""
    rate: float | None = None
    """Samples a second that are predicted, of all workers and processes."""
    speed_up: float | None = None
    """That over the rate of what the cell is compared with: predicted as well, or measured just before."""
    basis: str = ""
    """What the prediction rests on, or why there is none."""
    link: float | None = None
    """Bytes a second of the link between the workers, as calibrated, or measured with all-reduces of this size."""
    link_basis: str = ""


class SweepFolder(GridFolder[Sweep, SweepRun, RepeatResult]):
    schema = SCHEMA
    study_type = Sweep
    result_type = RepeatResult

    @property
    def chart(self) -> Path:
        return self.path / "chart.svg"

    def plan_file(self, sweep: Sweep, cell: SweepCell) -> Path:
        return self.path / "plans" / self.cell(sweep, SweepRun(cell, 0)).name

    def plan(self, sweep: Sweep, cell: SweepCell) -> CellPlan | None:
        return read_kept(self.plan_file(sweep, cell), CellPlan)

    def keep_plan(self, sweep: Sweep, plan: CellPlan) -> None:
        document: dict[str, Any] = {"schema": self.schema, "result": to_document(plan)}
        path = self.plan_file(sweep, plan.cell)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, document)

    def runs(self, sweep: Sweep, run: SweepRun) -> Path:
        """Where a repeat's run folders are made: one, or one a process."""
        return self.path / "runs" / self.cell(sweep, run).stem

    def job(self, settings: Settings, cell: SweepCell) -> Settings:
        """The settings with the job as the cell loads its data: as it is, or from a file here that loads it once."""
        if cell.loading == "with":
            return settings
        file = self.path / "job_without_loading.py"
        file.write_text(SOURCE.format(spec=absolute_spec(settings.job)))
        return replace(settings, job=JobSpec(path=f"{file.absolute()}:build"))


def absolute_spec(spec: JobSpec) -> JobSpec:
    """The same job for a file that lies elsewhere."""
    source, colon, name = (spec.path or "").rpartition(":")
    path = f"{Path(source).absolute()}{colon}{name}" if source.endswith(".py") else spec.path
    folder = None if spec.data_dir is None else str(Path(spec.data_dir).absolute())
    return replace(spec, path=path, data_dir=folder)

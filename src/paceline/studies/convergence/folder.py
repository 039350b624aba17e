"""The folder of a study of convergence: what is compared, and a small file for every run that is done."""

from pathlib import Path

from paceline.errors import UsageError
from paceline.studies.convergence.result import SCHEMA, CellResult, ConvergenceResult, summarize
from paceline.studies.convergence.study import ConvergenceStudy, GridCell
from paceline.studies.grid import GridFolder


class StudyFolder(GridFolder[ConvergenceStudy, GridCell, CellResult]):
    """A cell is kept by its own process: equal runs leave equal files."""

    schema = SCHEMA
    study_type = ConvergenceStudy
    result_type = CellResult

    @property
    def chart(self) -> Path:
        return self.path / "convergence.svg"


def read_convergence(path: Path, target: float | None = None) -> ConvergenceResult:
    """What a study has found, as far as its runs are done; code that its runs did not have is refused."""
    folder = StudyFolder(path)
    study = folder.read(trusted=True)
    cells = [GridCell(pair, seed) for pair in study.pairs for seed in study.seeds]
    results = list(folder.done(study, cells).values())
    if not results:
        raise UsageError(f"the study {path} has no run that is done; resume it first, or name another folder")
    job, missing = study.settings.job, len(cells) - len(results)
    left_out = f"{missing} of {len(cells)} runs are not done, or do not go together."
    return summarize(
        study,
        job.path or f"{job.data} {job.model.partition(':')[0]}",
        results,
        target=target,
        left_out=(left_out,) if missing else (),
    )

"""The folder of a study of convergence: what is compared, and a small file for every run that is done."""

from pathlib import Path

from paceline.studies.convergence.result import SCHEMA, CellResult
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

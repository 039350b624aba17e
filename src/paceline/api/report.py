"""``paceline.report``: a page of what was recorded, measured or predicted."""

from pathlib import Path
from typing import Any

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult
from paceline.api.runs import path_of_run
from paceline.errors import UsageError


@naming_arguments
def report(*runs: "str | Path | StudyResult[Any]", out: str | Path | None = None) -> Path:
    """Make one HTML page that loads nothing, as ``paceline report`` does, and return its path.

    Args:
        runs: Loaded runs or run folders; or one folder of a study, or the JSON file of a prediction or a profile.
        out: The file to write; report.html in the first folder where it is not given.
    """
    from paceline.commands.repeat import repeat_command
    from paceline.reports.page.build import write_report

    if not runs:
        raise UsageError("which run? name its folder, as in 'paceline report runs/...'")
    paths = tuple(_path(one) for one in runs)
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"there is no {path}: name the folder of a run, as in 'paceline report runs/...'"
            )
    return write_report(paths, None if out is None else Path(out), repeat_command)


def _path(one: "str | Path | StudyResult[Any]") -> Path:
    if (path := path_of_run(one)) is None:
        kind = type(getattr(one, "value", one)).__name__
        raise UsageError(
            f"what is of type {kind} is in no folder: write its to_json() to a file, and name that"
        )
    return path

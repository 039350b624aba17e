"""``paceline export``: a run's records for other tools."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paceline.errors import UsageError
from paceline.records.folder import RunFolder, find_run

Format = Literal["csv", "trace", "tensorboard"]


def export(
    run: Path,
    *,
    to: Format,
    out: Path | None = None,
    runs: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> None:
    """Write a run's records for other tools: spreadsheets, Perfetto, TensorBoard.

    Prints the path of each file or folder that was written.

    Args:
        run: The run's folder, or 'latest'.
        to: csv (plain tables), trace (spans for ui.perfetto.dev) or tensorboard (event files).
        out: The folder to write to (default: csv/ or tensorboard/ in the run's folder, or the run's folder itself).
        runs: Where 'latest' is looked for (default runs).
    """
    folder = find_run(run, runs)
    target = out or {"csv": folder.csv, "trace": folder.path, "tensorboard": folder.tensorboard}[to]
    try:
        target.mkdir(parents=True, exist_ok=True)
        if to == "tensorboard" and any(target.iterdir()):
            raise UsageError(
                f"{target} holds files already, and a second set of events would show every point twice; give --out "
                "another folder, or remove it"
            )
        lines = _write(folder, to, target)
    except OSError as error:
        raise UsageError(f"cannot write to {target}: {error.strerror}; give --out another folder") from error
    sys.stdout.write("\n".join(lines) + "\n")


def _write(folder: RunFolder, to: Format, target: Path) -> list[str]:
    if to == "csv":
        from paceline.reports.csv_tables import write_csv
        from paceline.reports.text import counted

        return [f"{path}  {counted(rows, 'row')}" for path, rows in write_csv(folder, target).items()]
    if to == "trace":
        from paceline.reports.trace import write_trace

        return [str(write_trace(folder, out=target / folder.trace.name))]
    from paceline.reports.tensorboard import export_tensorboard
    from paceline.studies.recorded import read_recorded

    return [str(export_tensorboard(read_recorded(folder.path), target))]

"""``paceline reshard``: make a stopped run ready for another number of workers."""

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import RECORD, whole
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.reports.text import counted


def reshard(
    run: Path,
    *,
    workers: Annotated[int, Parameter(converter=whole, name=["--workers", "-np"])],
    runs: Annotated[Path | None, Parameter(group=RECORD)] = None,
    trust: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False,
) -> None:
    """Make a run folder that resumes a stopped run with another number of workers.

    On one host 'paceline train --resume RUN --workers N' does so by itself. For several hosts, make the folder where
    the checkpoints of all ranks are, see that every host has it, and resume it there.

    Parameters
    ----------
    run
        The folder of the run that stopped; it stays as it is.
    workers
        Workers of all hosts together, who share the run's global batch.
    runs
        Make the new folder in this one (default: beside the old one).
    trust
        Run the job's code, also where it has changed or lies in the run folder.
    """
    new = make_folder(RunFolder(run), workers, trust=trust, runs=runs)
    sys.stderr.write(f"Resume: paceline train --resume {quote(str(new.path))}\n")


def make_folder(old: RunFolder, workers: int, *, trust: bool, runs: Path | None = None) -> RunFolder:
    """The new folder, beside the old one unless told where; the user is told."""
    from paceline.cli.resuming import check_code
    from paceline.records.folder import RunLock, check_parent
    from paceline.runtimes.config import read_live
    from paceline.runtimes.live.launcher.resharding import reshard as make

    config = read_live(old)
    check_code(config, old, trust=trust)
    if workers == config.settings.workers:
        raise UsageError(
            f"{old.path} has {counted(workers, 'worker')} already; resume it as it is, with "
            f"'paceline train --resume {quote(str(old.path))}'"
        )
    parent = runs or old.path.parent
    try:
        check_parent(parent)
    except UsageError as mistake:
        if runs is not None:
            raise
        raise UsageError(
            f"nothing can be written to {parent}, and a folder for {counted(workers, 'worker')} is made beside the "
            f"old one; make it elsewhere with 'paceline reshard {quote(str(old.path))} --workers {workers} --runs "
            "FOLDER', and resume that"
        ) from mistake
    with RunLock.own(old, 0, only_read=True):
        new = make(old, workers, parent)
    sizes = sorted(set(read_live(new).settings.batch_sizes))
    batch = f"{sizes[0]} or {sizes[1]}" if len(sizes) > 1 else str(sizes[0])
    sys.stderr.write(
        f"paceline: {new.path} goes on where {old.path} stopped, with {counted(workers, 'worker')} x batch {batch} "
        f"instead of {config.settings.workers}; the old folder stays as it is\n"
    )
    return new

"""``paceline reshard``: make a stopped run ready for another number of workers."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import RECORD, whole
from paceline.records.folder import RunFolder


def reshard(
    run: Path,
    *,
    workers: Annotated[int, Parameter(converter=whole, name=["--workers", "-np"])],
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
    trust
        Run the job's code, also where it has changed or lies in the run folder.
    """
    make_folder(RunFolder(run), workers, trust=trust)


def make_folder(old: RunFolder, workers: int, *, trust: bool) -> RunFolder:
    """The new folder, beside the old one; the user is told."""
    from paceline.cli.resuming import check_code
    from paceline.records.lock import RunLock
    from paceline.runtimes.config import read_live
    from paceline.runtimes.live.resharding import reshard as make

    config = read_live(old)
    check_code(config, old, trust=trust)
    with RunLock.own(old, 0):
        new = make(old, workers)
    sizes = sorted(set(read_live(new).settings.batch_sizes))
    batch = f"{sizes[0]} or {sizes[1]}" if len(sizes) > 1 else str(sizes[0])
    sys.stderr.write(
        f"paceline: {new.path} goes on where {old.path} stopped, with {workers} workers x batch {batch} instead of "
        f"{config.settings.workers}; the old folder stays as it is\n"
    )
    return new

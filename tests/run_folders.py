"""Run folders as a run would have left them, for tests that train nothing."""

from pathlib import Path
from typing import Any

from paceline.jobs.spec import JobSpec
from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunFolder
from paceline.runtimes.config import Placement, read_config, write_config
from paceline.runtimes.settings import Settings


def checkpoints_of(folder: RunFolder, keep: int = 3, role: Any = "rank") -> Checkpoints:
    """The checkpoints of the run that this folder says it is of."""
    return Checkpoints(folder, read_config(folder).identity, keep, role)


def saved_run(path: Path, step: int, workers: int = 2, servers: int = 0, nodes: int = 1) -> RunFolder:
    """A run of one host, or the part that the first of several has, with one whole checkpoint."""
    folder = RunFolder(path)
    settings = Settings(job=JobSpec(), batch_sizes=(8,) * workers, epochs=1)
    placement = Placement(
        workers=tuple(rank * nodes // workers for rank in range(workers)),
        servers=tuple(server % nodes for server in range(servers)),
    )
    write_config(folder, settings, "live", {}, placement=placement)
    folder.lock(0).touch()
    for role, places in (("rank", placement.workers), ("server", placement.servers)):
        for rank in [rank for rank, node in enumerate(places) if node == 0]:
            checkpoints_of(folder, role=role).save(step, rank, {"rank": rank})
    return folder

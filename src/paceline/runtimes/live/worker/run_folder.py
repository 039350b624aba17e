"""The run folder, as the processes of a live run make it, hold it and continue it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from shutil import rmtree
from typing import Any

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.events import read_events, truncate_events, truncate_metrics
from paceline.records.files import DamagedFile
from paceline.records.folder import RunFolder, RunLock, check_folder_name, create, create_new
from paceline.records.spans import TimeLedger
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity, read_config
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.worker.comm import SoloComm


@dataclass(frozen=True, kw_only=True)
class HeldFolder:
    """A run folder whose lock this process holds."""

    folder: RunFolder
    identity: RunIdentity
    lock: RunLock
    commits: Commits | None = None
    """The record of complete checkpoints; None for a worker that joined, which writes none."""
    workers: list[Any] = field(default_factory=list)
    """Rank, host, node and pid of every worker that the run started with."""
    local: tuple[int, ...] = ()
    """The ranks of this host's workers, the first of which writes the commits."""

    def checkpoints(self, keep: int) -> Checkpoints:
        return Checkpoints(self.folder, self.identity, keep)

    def commit(self, step: int, rank: int, members: Sequence[int], checkpoints: Checkpoints) -> None:
        """Record, once a host, that the checkpoint is complete on all members; remove those that are too old."""
        self.lock.check()
        first_here = rank == min((local for local in self.local if local in members), default=None)
        if first_here and self.commits:
            self.commits.add(step)
        checkpoints.prune(rank)
        if first_here:
            checkpoints.prune_gone(rank, members)

    def truncate(self, rank: int, clock: int, progress: int) -> list[str]:
        """Remove what was recorded and saved after a checkpoint; return a sentence for each damaged file."""
        self.checkpoints(1).forget_after(progress, rank)
        if self.commits:
            self.commits.forget_after(progress)
        damaged = truncate_events(self.folder.events(rank), clock)
        if rank == 0:
            damaged += truncate_metrics(self.folder.metrics, progress)
        return damaged


def hold_folder(comm: SoloComm, task: ProcessTask, name: str, owned: RunLock | None) -> HeldFolder:
    """Make the run folder, or continue in the resumed one, together with the other workers, which all call this.

    ``owned`` is the resumed folder's lock where this worker took it already. No worker writes before all have called
    this: whatever is wrong with the run has been found by then.
    """
    place = task.info
    here = {"rank": place.rank, "host": place.host, "node": place.node_rank, "pid": os.getpid()}
    workers = comm.exchange(here)
    if task.resume is None or task.resumed is None:
        folder, identity, owned = agree_on_folder(comm, task, name, workers)
    else:
        folder, identity = task.resume, task.resumed
        if place.local_rank == 0:
            task.describe(folder, identity, workers)
    return HeldFolder(
        folder=folder,
        identity=identity,
        lock=owned or RunLock.share(folder, place.node_rank),
        commits=Commits(folder, identity, place.node_rank),
        workers=workers,
        local=tuple(worker["rank"] for worker in workers if worker["node"] == place.node_rank),
    )


def agree_on_folder(
    comm: SoloComm, task: ProcessTask, name: str, workers: list[Any]
) -> tuple[RunFolder, RunIdentity, RunLock | None]:
    """Make a new run folder of the same name on every host, and own it: rank 0 chooses name and id.

    The first worker of each host makes and locks it there. A folder that exists already is another run's, unless it
    says that it is this one's: hosts may share a file system. Where one host refuses, all do, and nothing is left.
    """
    first = task.info.local_rank == 0
    made: RunFolder | None = None
    offer: dict[str, Any] = {}
    if comm.rank == 0:
        identity = new_identity(task.settings)
        now = datetime.now(UTC)
        made = create_new(task.runs, name, now, lambda draft: task.describe(draft, identity, workers))
        offer = {"name": made.path.name, "run": identity.run}
    offer = comm.exchange(offer)[0]
    identity = new_identity(task.settings, run=offer["run"])
    folder = RunFolder(task.runs / check_folder_name(offer["name"]))
    refusal, lock = None, None
    try:
        if first and comm.rank != 0:
            made = claim(folder, identity, lambda draft: task.describe(draft, identity, workers))
        lock = RunLock.own(folder, task.info.node_rank) if first else None
    except UsageError as mistake:
        refusal = str(mistake)
    if refusals := [one for one in comm.exchange(refusal) if one]:
        if lock:
            lock.close()
        if made:
            rmtree(made.path, ignore_errors=True)
        raise UsageError(refusals[0])
    return folder, identity, lock


def claim(folder: RunFolder, identity: RunIdentity, fill: Callable[[RunFolder], None]) -> RunFolder | None:
    """Make a folder of a name that another host has chosen, or find that it is this run's already."""
    try:
        return create(folder.path.parent, folder.path.name, fill)
    except FileExistsError:
        check_owner(folder, identity)
        return None


def check_owner(folder: RunFolder, identity: RunIdentity) -> None:
    """Refuse a run folder that belongs to another run."""
    found = read_config(folder).identity
    if found.run != identity.run:
        raise UsageError(
            f"{folder.path} belongs to run {found.run}, and this is run {identity.run}; "
            "choose another folder for runs, or start again"
        )


def last_recorded_step(folder: RunFolder, rank: int) -> int:
    """The last step that a worker has recorded; 0 where it has recorded none."""
    path = folder.events(rank)
    return max((record.step for record in read_events(path)), default=0) if path.exists() else 0


def recorded_time(folder: RunFolder, rank: int) -> tuple[TimeLedger, float]:
    """What a worker has recorded, added up, and when that ended; as far as it can be read."""
    ledger, end = TimeLedger(), 0.0
    if folder.events(rank).exists():
        try:
            for record in read_events(folder.events(rank)):
                ledger.add(record)
                end = record.spans[-1].start + record.spans[-1].length if record.spans else end
        except DamagedFile:
            ledger.note_damage()
    ledger.starting = True
    return ledger, end

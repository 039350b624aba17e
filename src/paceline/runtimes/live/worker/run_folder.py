"""The run folder, as the processes of a live run make it, hold it and continue it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from shutil import rmtree
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.events import read_events, truncate_events, truncate_metrics
from paceline.records.files import DamagedFile
from paceline.records.folder import RunFolder, RunLock, check_folder_name, create, create_new
from paceline.records.spans import StepRecord, TimeLedger
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity, read_config
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.recorder import find_drift
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Position
from paceline.strategies.base import Worker

_NUMBERS = ("clock", "now", "samples", "samples_since_sync", "total_weight")


@dataclass(frozen=True, kw_only=True)
class HeldFolder:
    folder: RunFolder
    identity: RunIdentity
    lock: RunLock
    checkpoints: Checkpoints
    commits: Commits | None = None
    """The record of complete checkpoints; None for a worker that joined, which writes none."""
    workers: list[Any] = field(default_factory=list)
    local: tuple[int, ...] = ()
    """The ranks of this host's workers, the first of which writes the commits."""

    def commit(self, step: int, rank: int, members: Sequence[int]) -> None:
        self.lock.check()
        first_here = rank == min((local for local in self.local if local in members), default=None)
        if first_here and self.commits:
            self.commits.add(step)
        self.checkpoints.prune(rank)
        if first_here:
            self.checkpoints.prune_gone(rank, members)

    def truncate(self, rank: int, clock: int, progress: int) -> list[str]:
        self.checkpoints.forget_after(progress, rank)
        if self.commits:
            self.commits.forget_after(progress)
        damaged = truncate_events(self.folder.events(rank), clock)
        if rank == 0:
            damaged += truncate_metrics(self.folder.metrics, progress)
        return damaged


def hold_folder(comm: SoloComm, task: ProcessTask, name: str, owned: RunLock | None) -> HeldFolder:
    """All workers call this, and none writes before. ``owned`` is the lock where this worker took it already."""
    info = task.info
    here = {"rank": info.rank, "host": info.host, "node": info.node_rank, "pid": os.getpid()}
    workers = comm.exchange(here)
    if task.resume is None or task.resumed is None:
        folder, identity, owned = agree_on_folder(comm, task, name, workers)
    else:
        folder, identity = task.resume, task.resumed
        if info.local_rank == 0:
            task.describe(folder, identity, workers)
    return HeldFolder(
        folder=folder,
        identity=identity,
        lock=owned or RunLock.share(folder, info.node_rank),
        checkpoints=Checkpoints(folder, identity, task.settings.keep),
        commits=Commits(folder, identity, info.node_rank),
        workers=workers,
        local=tuple(worker["rank"] for worker in workers if worker["node"] == info.node_rank),
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
    try:
        return create(folder.path.parent, folder.path.name, fill)
    except FileExistsError:
        check_owner(folder, identity)
        return None


def check_owner(folder: RunFolder, identity: RunIdentity) -> None:
    found = read_config(folder).identity
    if found.run != identity.run:
        raise UsageError(
            f"{folder.path} belongs to run {found.run}, and this is run {identity.run}; "
            "choose another folder for runs, or start again"
        )


def recorded_time(folder: RunFolder, rank: int) -> tuple[TimeLedger, float, int]:
    """What a worker has recorded, added up, as far as it can be read; when that ended, and its last step."""
    ledger, end, last = TimeLedger(), 0.0, 0
    if folder.events(rank).exists():
        try:
            for record in read_events(folder.events(rank)):
                ledger.add(record)
                end = record.spans[-1].start + record.spans[-1].length if record.spans else end
                last = max(last, record.step)
        except DamagedFile:
            ledger.add(StepRecord(step=0, damaged=1, is_step=False))
    ledger.starting = True
    return ledger, end, last


def snapshot(replica: Replica, me: Worker, position: Position, target: float | None) -> dict[str, Any]:
    on_gpu = replica.device.type == "cuda"
    return {
        "replica": replica.state(),
        "gpu_rng": torch.cuda.get_rng_state(replica.device) if on_gpu else None,
        "state": dict(me.state),
        "worker": {name: getattr(me, name) for name in _NUMBERS},
        "position": asdict(position),
        "target": target,
    }


def restore(tree: dict[str, Any], replica: Replica, me: Worker, target: float | None) -> Position:
    replica.load(tree["replica"])
    if tree["gpu_rng"] is not None:
        torch.cuda.set_rng_state(tree["gpu_rng"], replica.device)
    me.state.update({name: tensor.to(replica.device) for name, tensor in tree["state"].items()})
    for name in _NUMBERS:
        setattr(me, name, tree["worker"][name])
    position = Position(**tree["position"])
    if tree["target"] != target:
        position.reached = None
    return position


def load_shared(
    checkpoints: Checkpoints, comm: SoloComm, prepared: Prepared[Job], note: Callable[[str], None]
) -> tuple[int, dict[str, Any] | None]:
    """Where there are servers theirs decide, and a worker may have no tree of that step."""
    whole, refused = checkpoints.valid_steps(comm.rank)
    mine = {"whole": whole, "refused": refused}
    if isinstance(comm, ServerComm):
        found = comm.servers(prepared.servers)
        refused += [sentence for one in found for sentence in one["refused"]]
    else:
        found = comm.exchange(mine)
        refused = [sentence for one in found for sentence in one["refused"]]
    for sentence in refused:
        note(sentence)
    shared: set[int] = set.intersection(*(set(one["whole"]) for one in found))
    for step in sorted(shared, reverse=True):
        tree: dict[str, Any] | None = checkpoints.load(step, comm.rank) if step in whole else None
        if not prepared.strategy.replicated or tree is None:
            return step, tree
        drift = find_drift(comm, tree["replica"]["params"])
        if not drift:
            return step, tree
        note(f"in the checkpoint of step {step} {drift}; this checkpoint is not used")
    who = f"{prepared.servers} servers" if prepared.servers else f"{comm.workers} workers"
    raise UsageError(
        f"{checkpoints.folder.path} holds no checkpoint that is whole on all {who}; start the run anew"
    )

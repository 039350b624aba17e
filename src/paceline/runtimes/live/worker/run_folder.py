"""The run folder, as one live worker writes it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

from torch import Tensor

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.events import read_events, truncate_events, truncate_metrics
from paceline.records.files import DamagedFile, write_json
from paceline.records.folder import RunFolder, check_folder_name, create, create_new, environment
from paceline.records.ledger import TimeLedger
from paceline.records.lock import RunLock
from paceline.records.tensors import RunIdentity, write_tensors
from paceline.runtimes.config import Placement, new_identity, read_config, write_config
from paceline.runtimes.live.documents import check_equal
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.worker.checkpoint import snapshot
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Position
from paceline.runtimes.settings import Settings
from paceline.strategies.base import Worker


@dataclass(frozen=True, kw_only=True)
class Home:
    """The run folder, as a process of the run that holds its lock knows it."""

    folder: RunFolder
    identity: RunIdentity
    lock: RunLock
    commits: tuple[Commits, ...] = ()
    """The records of complete checkpoints that this process may have to write."""
    local: tuple[int, ...] = ()
    """The ranks of this host's workers, the first of which writes them."""

    def checkpoints(self, keep: int) -> Checkpoints:
        """This run's own."""
        return Checkpoints(self.folder, self.identity, keep)


Describe = Callable[[RunFolder, RunIdentity], None]
"""Writes what a run folder says of its run."""


def agree_on_folder(
    group: Group, place: ProcessInfo, runs: Path, name: str, settings: Settings, describe: Describe
) -> tuple[RunFolder, RunIdentity, RunLock | None]:
    """Make a new run folder of the same name on every host, and own it: rank 0 chooses name and id.

    The first worker of each host makes and locks it there. A folder that is there already is another run's, unless
    it says that it is this one's: hosts may share a file system. Where one host refuses, all do, and nothing is left.
    """
    first = place.local_rank == 0
    made: RunFolder | None = None
    offer: dict[str, Any] = {}
    if group.rank == 0:
        identity = new_identity(settings)
        made = create_new(runs, name, datetime.now(UTC), lambda draft: describe(draft, identity))
        offer = {"name": made.path.name, "run": identity.run}
    offer = group.exchange(offer)[0]
    identity = new_identity(settings, run=offer["run"])
    folder = RunFolder(runs / check_folder_name(offer["name"]))
    refusal, lock = None, None
    try:
        if first and group.rank != 0:
            made = claim(folder, identity, lambda draft: describe(draft, identity))
        lock = RunLock.own(folder, place.node_rank) if first else None
    except UsageError as mistake:
        refusal = str(mistake)
    if refusals := [said for said in group.exchange(refusal) if said]:
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
            "choose another place with --runs, or start again"
        )


def check_alike(
    group: Group, settings: Settings, name: str, resume: RunFolder | None, run: str | None = None
) -> None:
    """Refuse to train with workers that were started for something else; where files lie may differ."""
    check_equal(group.exchange(asked_for(settings, name, resume, run)))


def asked_for(
    settings: Settings, name: str, resume: RunFolder | None, run: str | None = None
) -> dict[str, Any]:
    """What a process was started for, as all processes of a run must have it alike."""
    asked = settings.to_json()
    job = asked.pop("job")
    asked.update({f"the job's {part}": words for part, words in job.items() if part != "data_dir"})
    asked["the run's name"] = name
    asked["--resume"] = resume.path.resolve().name if resume else None
    asked["the id of the run in --resume"] = run
    return asked


def describe_run(
    folder: RunFolder,
    identity: RunIdentity,
    settings: Settings,
    options: LiveOptions,
    place: ProcessInfo,
    hosts: list[Any],
) -> None:
    """Write ``config.json`` and ``env.json``; once a host."""
    nodes = [number % place.nodes for number in range(place.servers)]
    placement = Placement(workers=tuple(host["node"] for host in hosts), servers=tuple(nodes))
    origin = read_config(folder).origin if folder.config.exists() else ""
    write_config(
        folder, settings, "live", asdict(options), identity=identity, placement=placement, origin=origin
    )
    write_json(folder.env, {**environment(), "workers": hosts})


def go_on(home: Home, rank: int, clock: int, progress: int) -> list[str]:
    """Forget what was recorded and saved after a checkpoint; return a sentence for each damaged file."""
    home.checkpoints(1).forget_after(progress, rank)
    for commits in home.commits:
        commits.forget_after(progress)
    damaged = truncate_events(home.folder.events(rank), clock)
    if rank == 0:
        damaged += truncate_metrics(home.folder.metrics, progress)
    return damaged


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


class Speaks(Protocol):
    """Who knows whether this worker is the one that speaks for all."""

    @property
    def speaks(self) -> bool:
        """Whether it is."""


class FolderKeeper:
    """Saves one worker into the run folder; the one that speaks for all also exports the model."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        replica: Replica,
        me: Worker,
        position: Position,
        speaker: Speaks,
    ) -> None:
        self.home, self.replica, self.me, self.position = home, replica, me, position
        self._speaker = speaker
        self._target = settings.target_accuracy
        self._checkpoints = home.checkpoints(settings.keep)

    def save(self) -> None:
        """Write a checkpoint, named by the progress that all workers share; one that is of no use is not written."""
        self.home.lock.check()
        if not self.me.params.isfinite().all():
            what = f"parameters of rank {self.me.rank} are not finite after an update"
            raise self.replica.diverged(what, self.me.clock)
        tree = snapshot(self.replica, self.me, self.position, self._target)
        try:
            self._checkpoints.save(self.position.progress, self.me.rank, tree)
        except FileNotFoundError:
            self.home.lock.check()
            raise

    def commit(self, members: Sequence[int]) -> None:
        """Record that the checkpoint is complete, once a host, and keep the last few."""
        self.home.lock.check()
        first_here = self.me.rank == _first_here(self.home.local, members)
        for commits in self.home.commits if first_here else ():
            commits.add(self.position.progress)
        self._checkpoints.prune(self.me.rank)
        if first_here:
            self._checkpoints.prune_gone(self.me.rank, members)

    def export(self, params: Tensor, buffers: Tensor) -> None:
        """Write ``model.safetensors``."""
        if self._speaker.speaks:
            self.home.lock.check()
            write_tensors(self.home.folder.model, self.replica.export(params, buffers))


def _first_here(local: Sequence[int], members: Sequence[int]) -> int | None:
    """The first of this host's workers that is there."""
    return min((rank for rank in local if rank in members), default=None)


def machine(place: ProcessInfo, pid: int) -> dict[str, Any]:
    """Where one worker runs, for the others."""
    return {"rank": place.rank, "host": place.host, "node": place.node_rank, "pid": pid}

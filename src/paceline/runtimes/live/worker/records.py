"""What a worker leaves in its run folder and reports to its observer; how a run's processes agree on the folder."""

import os
from collections.abc import Callable
from dataclasses import replace
from shutil import rmtree
from statistics import fmean
from sys import maxsize
from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.events import MetricsRow, append_metrics, read_events, truncate_events, truncate_metrics
from paceline.records.files import DamagedFile, from_document, to_document, write_json
from paceline.records.folder import RunFolder, RunLock, check_folder_name, create, create_new
from paceline.records.load import HostLoad, SystemSampler, usable_cores
from paceline.records.servers import ServerTotals
from paceline.records.spans import StepRecord, TimeLedger, Totals
from paceline.records.summary import NoiseScale, Observer, Probe, ScriptModel, Started, Summary
from paceline.records.tensors import RunIdentity
from paceline.runtimes.buffers import flat_buffers, trained_dtype
from paceline.runtimes.compression import layout_of
from paceline.runtimes.config import new_identity, read_config
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.recorder import find_drift
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.session import Ending, Position
from paceline.strategies.base import SyncPoint, Worker


class RunRecords:
    """Reports while this worker is the first member; one that becomes it says so, and how the run began."""

    def __init__(self, prepared: Prepared[Job], comm: SoloComm, observer: Observer, me: Worker) -> None:
        """Call ``hold`` and ``open``, or ``use`` where the worker joins, before anything is written."""
        self._prepared, self._comm, self._observer, self._me = prepared, comm, observer, me
        self.ledger = TimeLedger()
        self.workers: list[Any] = []
        self.local: tuple[int, ...] = ()
        """The ranks of this host's workers, the first of which writes the commits; a worker that joined writes none."""
        self._started: Started | None = None
        self._introduced = False
        self._last_row: MetricsRow | None = None

    def hold(self, task: ProcessTask, owned: RunLock | None) -> RunLock:
        """All workers call this, and none writes before. ``owned`` is the lock where this worker took it already."""
        info = task.info
        here = {"rank": info.rank, "host": info.host, "node": info.node_rank, "pid": os.getpid()}
        here["launcher"] = "other" if info.launch is None else "paceline"
        self.workers = self._comm.exchange(here)
        self.local = tuple(worker["rank"] for worker in self.workers if worker["node"] == info.node_rank)
        if task.resume is None or task.resumed is None:
            name = task.name or self._prepared.job.name
            folder, identity, owned = agree_on_folder(self._comm, task, name, self.workers)
        else:
            folder, identity = task.resume, task.resumed
            if info.local_rank == 0:
                task.describe(folder, identity, self.workers)
        self._commits = Commits(folder, identity, info.node_rank)
        return self.use(folder, identity, owned or RunLock.share(folder, info.node_rank))

    def use(self, folder: RunFolder, identity: RunIdentity, lock: RunLock) -> RunLock:
        self.folder, self.identity, self.lock = folder, identity, lock
        self.checkpoints = Checkpoints(folder, identity, self._prepared.settings.keep)
        return lock

    def open(self, progress: int, *, restored: bool) -> None:
        """Go on after what was recorded up to ``progress``; drop what is beyond it, and beyond a worker's own state."""
        rank, me = self._comm.rank, self._me
        self.checkpoints.forget_after(progress, rank)
        self._commits.forget_after(progress)
        damaged = truncate_events(self.folder.events(rank), me.clock if restored else maxsize)
        if rank == 0:
            damaged += truncate_metrics(self.folder.metrics, progress)
        self.ledger, end, last_step = recorded_time(self.folder, rank)
        others = self._comm.exchange({"now": max(me.now, end), "damaged": damaged})
        for sentence in (sentence for other in others for sentence in other["damaged"]):
            self.noted(sentence)
        me.now = max(other["now"] for other in others)
        if not restored:  # no step is recorded twice, and no mini-batch drawn again
            me.clock = last_step

    def commit(self, step: int) -> None:
        self.lock.check()
        rank, members = self._comm.rank, self._comm.members
        first_here = rank == min((local for local in self.local if local in members), default=None)
        if first_here:
            self._commits.add(step)
        self.checkpoints.prune(rank)
        if first_here:
            self.checkpoints.prune_gone(rank, members)

    @property
    def is_first(self) -> bool:
        return self._comm.members[0] == self._comm.rank

    def noted(self, sentence: str) -> None:
        if self.is_first:
            self._observer.noted(sentence)

    def started(self, first_step: int, rate: float, probe: Probe | None = None) -> None:
        """``rate`` is the optimizer's learning rate."""
        path, me = self.folder.path, self._me
        started = self._prepared.started(
            path.name, me.params.shape[-1], self._comm.transport, str(path), rate
        )
        threads = torch.get_num_threads()
        self._started = replace(
            started,
            first_step=first_step,
            seconds=me.now,
            threads=threads,
            cores=usable_cores(),
            model=script_model(self._prepared.job.model()) if self._prepared.settings.job.is_script else None,
        )
        if self.is_first:
            self._introduced = True
            self.lock.check()
            write_json(self.folder.start, to_document(replace(self._started, folder=None)))
            self._observer.started(replace(self._started, probe=probe, subject=self._prepared.job))

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        if self._introduced:
            self._observer.stepped(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow) -> None:
        self._last_row = row
        if self.is_first:
            self.lock.check()
            append_metrics(self.folder.metrics, row)
            self._take_over()
            self._observer.evaluated(row)

    def _take_over(self) -> None:
        if not self._introduced:
            self._introduced = True
            self._observer.noted(f"rank {self._comm.rank} reports from here on: the ranks before it are gone")
            if self._started is not None:
                self._observer.started(self._started)

    def finished(
        self,
        ending: Ending,
        position: Position,
        sampler: SystemSampler | None,
        coding: float | None = None,
        noise_scale: NoiseScale | None = None,
        profiled: str = "",
    ) -> Summary:
        me, totals = self._me, [self.ledger.totals()]
        loads, servers = list[HostLoad](), list[ServerTotals]()
        left = ending == "left"  # then the other workers train on and have nothing to report yet
        if not left:
            load = sampler.load if sampler else None
            totals, loads = gather_totals(self._comm, self.folder, totals[0], load)
            servers = [from_document(document, ServerTotals) for document in self._comm.server_totals()]
            self.lock.check()
        job = self._prepared.job
        summary = Summary(
            name=self.folder.path.name,
            runtime="live",
            ending=ending,
            workers=self._comm.workers,
            steps=self._steps(position, totals),
            epochs=self._prepared.triggers.epoch(position.progress),
            seconds=me.now,
            samples=sum(one.samples for one in totals),
            parameters=me.params.shape[-1],
            target=self._prepared.settings.target_accuracy,
            target_seconds=position.reached,
            final=self._last_row.to_json() if self._last_row else {},
            totals=totals,
            servers=servers,
            cpu_percent=sampler.cpu_percent if sampler else None,
            memory_bytes=sampler.memory_bytes if sampler else None,
            loads=loads,
            loader_workers=None if self._prepared.settings.job.is_script else job.loader_workers,
            coding=coding,
            noise_scale=noise_scale,
            profiled=profiled,
        )
        if self.is_first and not left:
            write_json(self.folder.summary, summary.to_json())
            self._take_over()
            self._observer.finished(summary)
        return summary

    def _steps(self, position: Position, totals: list[Totals]) -> int:
        """Steps a worker. Those of a script are as recorded: it may go on from others, which are in no record.

        Servers know them by samples alone, and a script may take several mini-batches in each.
        """
        if not self._prepared.settings.job.is_script:
            return position.progress
        steps = [one.steps for one in totals]
        apart = self._prepared.strategy.sync_point is SyncPoint.ON_REQUEST
        return round(fmean(steps)) if apart else max(steps)


def script_model(model: nn.Module) -> ScriptModel:
    layout = layout_of(model)
    return ScriptModel(
        names=layout.names,
        shapes=layout.shapes,
        dtype=str(trained_dtype(model)).removeprefix("torch."),
        buffers=flat_buffers(model),
    )


def gather_totals(
    comm: SoloComm, folder: RunFolder, mine: Totals, load: HostLoad | None
) -> tuple[list[Totals], list[HostLoad]]:
    """Every worker's totals, at the index of its rank; of one that is gone, what it has recorded on this host."""
    document = {"rank": comm.rank, "totals": to_document(mine), "load": to_document(load)}
    gathered = comm.exchange(document)
    totals = {one["rank"]: from_document(one["totals"], Totals) for one in gathered}
    for rank in {*range(comm.workers), *folder.event_files()} - set(totals):
        totals[rank] = recorded_time(folder, rank)[0].totals()
    by_rank = [totals.get(rank, Totals()) for rank in range(max(totals) + 1)]  # not every rank is in use
    return by_rank, [HostLoad(**one["load"]) for one in gathered if one["load"]]


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
        made = create_new(task.runs, name, lambda draft: task.describe(draft, identity, workers))
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


def load_shared(
    checkpoints: Checkpoints, comm: SoloComm, prepared: Prepared[Job], note: Callable[[str], None]
) -> tuple[int, dict[str, Any] | None]:
    """Where there are servers theirs decide, and a worker may have no tree of that step."""
    whole, refused = checkpoints.valid_steps(comm.rank)
    mine = {"whole": whole, "refused": refused}
    found = comm.servers(prepared.servers) if isinstance(comm, ServerComm) else comm.exchange(mine)
    for sentence in dict.fromkeys(sentence for one in (mine, *found) for sentence in one["refused"]):
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

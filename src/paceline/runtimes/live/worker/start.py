"""One live worker from its first word with the others to the summary."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.folder import RunFolder
from paceline.records.load import usable_cores
from paceline.records.lock import RunLock
from paceline.records.observer import Observer
from paceline.records.summary import Summary
from paceline.records.system import SystemSampler
from paceline.runtimes.config import read_live
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.engine import Beating
from paceline.runtimes.live.worker.run_folder import (
    Describe,
    Home,
    agree_on_folder,
    asked_for,
    check_alike,
    describe_run,
    machine,
)
from paceline.runtimes.live.worker.served import ThroughServers
from paceline.runtimes.live.worker.ways import AmongWorkers, WorkerBackend
from paceline.runtimes.prepare import Prepared, prepare
from paceline.runtimes.settings import Settings
from paceline.runtimes.threads import too_many


class Heart(Beating, Protocol):
    """Somebody who is told of every step, and where the run is kept."""

    def show(self, run: Path) -> None:
        """The run folder is known."""


def run_worker(
    settings: Settings,
    *,
    options: LiveOptions,
    place: ProcessInfo,
    runs: Path,
    observer: Observer,
    heartbeat: Heart,
    stop_requested: Callable[[], bool],
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None,
    resume: RunFolder | None = None,
    name: str | None = None,
) -> Summary:
    """Be one worker of a run to its end; every worker of the run must be started with the same settings.

    Only rank 0's observer is told anything, and that of a host's first worker what the host lacks. Where servers
    keep the parameters the first worker that is there is told. ``resume`` goes on in an earlier run's folder, from
    the newest checkpoint that is whole on all workers; our own launcher then owns the folder already, else the first
    worker of a host comes to own it. A run that is refused writes nothing. Whatever else is raised leaves the records
    so far in the run folder, and the connections closed; where gloo still sums, they close with the process.
    ``before_hard_end`` is given what writes the records down, for whoever may end the process.
    """
    torch.set_num_threads(options.threads)
    prepared = _prepare(settings, place)
    device = options.device_of(place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    way = _way(prepared, place, options, stop_requested)
    with ExitStack() as stack:
        own = _Ownership(place, resume, stack)
        group = stack.enter_context(_joined(way.join(device, observer.noted)))
        check_alike(group, settings, name or "", resume, own.run)
        life = way.life(device, observer, heartbeat)
        if resume:
            heartbeat.show(resume.path)
            life.restore(resume, own.checkpoints(settings.keep))
        # Nobody writes before all have come so far: whatever is wrong with the run has been found by now.
        workers = group.exchange(machine(place, os.getpid()))
        home = own.move_in(
            group,
            runs,
            name or prepared.job.name,
            settings,
            lambda folder, identity: describe_run(folder, identity, settings, options, place, workers),
        )
        heartbeat.show(home.folder.path)
        life.move_in(home)
        agreed = way.agree(life, asked_for(settings, name or "", resume, own.run))
        pids = [worker["pid"] for worker in workers if worker["node"] == place.node_rank]
        sampler = None
        if place.local_rank == 0:
            _warn_of_sharing(place, options, observer)
            sampler = SystemSampler(
                home.folder.system,
                pids,
                since=life.begun,
                roots=job_roots(place),
                wanted=place.local_workers * options.threads,
            )
        return life.live(agreed, before_hard_end, sampler)


def _warn_of_sharing(place: ProcessInfo, options: LiveOptions, observer: Observer) -> None:
    """Say that the workers of this host share cores, where they do."""
    shared = too_many(place.local_workers, options.threads, usable_cores())
    if shared and options.device == "cpu":
        observer.noted(
            f"{shared} of {place.host}: they take turns, so steps take longer than with a core for each thread and "
            "their times do not compare with those of fewer workers; give fewer --workers or --threads"
        )


class _Ownership:
    """How a worker comes to hold its run folder: an earlier run's, or one that is made."""

    def __init__(self, place: ProcessInfo, resume: RunFolder | None, stack: ExitStack) -> None:
        """The ``stack`` gives the folder back."""
        self._place, self._resume, self._stack = place, resume, stack
        self._identity = read_live(resume).identity if resume else None
        self._lock: RunLock | None = None
        if resume and place.local_rank == 0 and place.launch is None:
            self._lock = stack.enter_context(RunLock.own(resume, place.node_rank))

    @property
    def run(self) -> str | None:
        """The id of the run that goes on."""
        return self._identity.run if self._identity else None

    def checkpoints(self, keep: int) -> Checkpoints:
        """Those of the run that goes on."""
        assert self._resume is not None
        assert self._identity is not None
        return Checkpoints(self._resume, self._identity, keep)

    def move_in(self, group: Group, runs: Path, name: str, settings: Settings, describe: Describe) -> Home:
        """Use the folder together with the other workers of this host, all of whom have come so far."""
        folder, identity, node = self._resume, self._identity, self._place.node_rank
        if folder is None or identity is None:
            folder, identity, lock = agree_on_folder(group, self._place, runs, name, settings, describe)
            self._lock = self._stack.enter_context(lock) if lock else None
        elif self._place.local_rank == 0:
            describe(folder, identity)
        lock = self._lock or self._stack.enter_context(RunLock.share(folder, node))
        first = self._place.rank - self._place.local_rank
        local = tuple(range(first, first + self._place.local_workers))
        commits = (Commits(folder, identity, node),)
        return Home(folder=folder, identity=identity, lock=lock, commits=commits, local=local)


def _prepare(settings: Settings, place: ProcessInfo) -> Prepared:
    if settings.workers != place.workers:
        raise UsageError(
            f"the settings are for {settings.workers} workers and {place.workers} were started; "
            "a run needs one batch size a worker, and resumes with as many workers as it had"
        )
    return prepare(settings)


def _way(
    prepared: Prepared,
    place: ProcessInfo,
    options: LiveOptions,
    stop_requested: Callable[[], bool],
) -> WorkerBackend:
    if not prepared.servers:
        return AmongWorkers(prepared, place, options, stop_requested)
    return ThroughServers(prepared, place, options, stop_requested)


@contextmanager
def _joined(group: Group) -> Iterator[Group]:
    try:
        yield group
    except BaseException:
        group.abandon()
        raise
    group.leave()

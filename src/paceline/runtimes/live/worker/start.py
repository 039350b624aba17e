"""The two ways to be a worker of a run: from its start or a checkpoint, and by joining one that is under way."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunFolder, RunLock, check_folder_name
from paceline.records.load import SystemSampler, usable_cores
from paceline.records.summary import Observer, Summary
from paceline.runtimes.config import import_paths, new_identity, write_config
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import job_roots
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.run_store import check_equal
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import KNOCK
from paceline.runtimes.live.wire.messages import RequestRank, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.comm import SoloComm, join_group
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.live.worker.run_folder import HeldFolder, claim, hold_folder
from paceline.runtimes.live.worker.server_comm import ServerClient, ServerComm
from paceline.runtimes.live.worker.stopping import AT_STEP, AT_SYNC_POINT, StopAtStep, StopByVote
from paceline.runtimes.prepare import Prepared, prepare
from paceline.runtimes.settings import Settings, read_exactly
from paceline.runtimes.threads import too_many
from paceline.specs.source import source_files
from paceline.strategies.base import SyncPoint


def run_worker(task: ProcessTask, observer: Observer) -> Summary:
    """Be one worker of a run to its end.

    Only the first worker's observer is called, and that of a host's first worker with what the host lacks. A run that
    resumes continues from the newest checkpoint that is whole on all workers; our own launcher then owns the folder
    already, else the first worker of a host takes it. A run that is refused writes nothing. Whatever else is raised
    leaves the records so far in the run folder, and the connections closed; where gloo still sums, they close with the
    process.
    """
    prepared = _prepare(task)
    device = _set_up_device(task)
    with ExitStack() as stack:
        owned = _own(task, stack)
        comm = stack.enter_context(_connected(prepared, task, device, observer))
        check_equal(comm.exchange(task.asked()))
        run = WorkerRun(prepared, comm, device, observer, task.heartbeat)
        if task.resume and task.resumed:
            task.heartbeat.show(task.resume.path)
            run.restore(task.resume, Checkpoints(task.resume, task.resumed, task.settings.keep))
        held = hold_folder(comm, task, task.name or prepared.job.name, owned)
        stack.enter_context(held.lock)
        run.open(held)
        stop = _agree_to_stop(run, task)
        sampler = _sampler(run, task, observer) if task.info.local_rank == 0 else None
        return run.train(stop, task.before_hard_end, sampler)


def join_run(
    endpoint: str,
    secret: Secret,
    options: LiveOptions,
    runs: Path,
    *,
    heartbeat: Heartbeat,
    stop_requested: Callable[[], bool],
    say: Callable[[str], None],
    job: str | None = None,
    trust: bool = False,
) -> Summary:
    """Train with the others until the run ends, or until this worker is asked to stop: then it leaves alone.

    Code that the run names is executed where the user has named the same ``job``, or gives the run ``trust``.
    """
    asked = perf_counter()
    welcome = _request_rank(endpoint, secret)
    run_document = json.loads(welcome.document)
    settings = read_exactly(run_document["settings"], Settings)
    check_named(settings, job, trust=trust)
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    name, rank = run_document["name"], welcome.rank
    comm = ServerComm(rank, settings.workers, name)
    device = torch.device(options.device)
    run = WorkerRun(prepared, comm, device, Observer(), heartbeat, leaving=stop_requested)
    comm.connect(secret, run_document["endpoints"], options.timeout)
    with ExitStack() as stack:
        stack.enter_context(_closing(comm))
        held = _hold_joined(runs, run_document, settings, stack)
        run.open(held, begun=run_document["now"] + perf_counter() - asked)
        say(f"joined {name} as rank {rank}; Ctrl-C leaves it")
        summary = run.train(_stop_by_servers(comm, say), start_together=False)
    ended = "left" if summary.ending == "left" else "ended with"
    say(f"rank {rank} {ended} {name} after {run.me.clock:,} steps")
    return summary


def check_named(settings: Settings, job: str | None, *, trust: bool) -> None:
    """Refuse to import code that the run names and the user does not; nothing of it has been executed by then."""
    if job is not None and job != settings.job.path and (trust or settings.job.path is None):
        raise UsageError(
            f"job {job} is not what the run trains, which is {settings.job.path or 'a job that ships'}; leave it out"
        )
    for path in () if trust else import_paths(settings):
        if path != job:
            files = source_files(path)
            where = f", from {files[-1]}" if files else ""
            same = f"name the same job {path}, or " if path == settings.job.path else ""
            raise UsageError(
                f"this host would import and call {path}{where}, which the run names; read it, and {same}trust the run"
            )


def _prepare(task: ProcessTask) -> Prepared:
    settings, place = task.settings, task.info
    if settings.workers != place.workers:
        raise UsageError(
            f"the settings are for {settings.workers} workers and {place.workers} were started; "
            "a run needs one batch size a worker, and resumes with as many workers as it had"
        )
    return prepare(settings)


def _set_up_device(task: ProcessTask) -> torch.device:
    torch.set_num_threads(task.options.threads)
    device = task.options.device_of(task.info)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _own(task: ProcessTask, stack: ExitStack) -> RunLock | None:
    """Own the resumed folder where our launcher does not, before anything else."""
    if task.resumed is None or task.resume is None:
        return None
    if task.info.local_rank != 0 or task.info.launch is not None:
        return None
    return stack.enter_context(RunLock.own(task.resume, task.info.node_rank))


@contextmanager
def _connected(
    prepared: Prepared, task: ProcessTask, device: torch.device, observer: Observer
) -> Iterator[SoloComm]:
    comm: SoloComm
    if prepared.servers:
        comm = ServerComm.at_start(task.info, task.options)
    else:
        collective = prepared.settings.collective
        comm = join_group(task.info, task.options, device, collective, observer.noted)
    with _closing(comm):
        yield comm


@contextmanager
def _closing(comm: SoloComm) -> Iterator[None]:
    try:
        yield
    except BaseException:
        comm.abandon()
        raise
    comm.leave()


def _agree_to_stop(run: WorkerRun, task: ProcessTask) -> StopByVote:
    """How the workers stop together; where there are servers, they are connected to here."""
    note, comm = run.reporter.noted, run.comm
    if not isinstance(comm, ServerComm):
        requested = task.stop_requested
        if comm.alone:
            return StopByVote(requested, note, AT_STEP, decided=requested)
        if run.prepared.strategy.sync_point is SyncPoint.AFTER_ROUND:
            return StopByVote(requested, note)
        store, patience = comm.open_store(), task.options.timeout
        return StopAtStep(requested, note, store=store, me=run.me, patience=patience)
    if comm.memory.why:
        note(f"gradients go through sockets: {comm.memory.why}")
    document = {
        "name": run.held.folder.path.name,
        "run": run.held.identity.run,
        "asked": task.asked(),
        "begun": run.begun,
        "step": run.resumed_step,
        "workers": run.held.workers,
    }
    comm.open(task.info, task.options.timeout, task.stop_requested, document)
    return _stop_by_servers(comm, note)


def _stop_by_servers(comm: ServerComm, note: Callable[[str], None]) -> StopByVote:
    """The servers decide; a worker that is asked to stop tells them with the next message that it sends."""
    return StopByVote(lambda: False, note, AT_SYNC_POINT, decided=lambda: comm.client.stopping)


def _sampler(run: WorkerRun, task: ProcessTask, observer: Observer) -> SystemSampler:
    """What samples this host's load, once a host; a note where its workers share cores."""
    place, options, held = task.info, task.options, run.held
    shared = too_many(place.local_workers, options.threads, usable_cores())
    if shared and options.device == "cpu":
        observer.noted(
            f"{shared} of {place.host}: they take turns, so steps take longer than with a core for each thread and "
            "their times do not compare with those of fewer workers; use fewer workers or threads"
        )
    return SystemSampler(
        held.folder.system,
        [worker["pid"] for worker in held.workers if worker["rank"] in held.local],
        since=run.begun,
        roots=job_roots(place),
        wanted=place.local_workers * options.threads,
    )


def _request_rank(endpoint: str, secret: Secret) -> Welcome:
    """Ask server 0 for a rank and a description of the run."""
    try:
        with ServerClient(secret, [endpoint], SharedFlat("join"), patience=KNOCK) as client:
            client.send(0, RequestRank())
            welcome = client.wait_for(Welcome).message
    except (TimeoutError, ConnectionError):
        raise UsageError(
            f"no run answers at {endpoint.removeprefix('tcp://')} to this secret; "
            "see that it is under way and that the secret file is the run's own"
        ) from None
    assert isinstance(welcome, Welcome)
    return welcome


def _hold_joined(runs: Path, run: dict[str, Any], settings: Settings, stack: ExitStack) -> HeldFolder:
    """The run's folder on this host: its own, or one that is made for the records of workers that join."""
    folder = RunFolder(runs / check_folder_name(run["name"]))
    identity = new_identity(settings, run=run["run"])
    claim(folder, identity, lambda draft: write_config(draft, settings, "live", {}, identity=identity))
    locks = [stack.enter_context(RunLock.share(folder, node)) for node in folder.lock_nodes() or [0]]
    return HeldFolder(folder=folder, identity=identity, lock=locks[0])

"""What one process of a training run does: it trains, it serves, or it joins a run that is under way."""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from paceline.errors import UsageError, say_on_stderr
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder, RunLock, check_folder_name
from paceline.records.load import SystemSampler, usable_cores
from paceline.records.summary import Observer, Summary
from paceline.runtimes.config import import_paths, new_identity, write_config
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo, host_name, job_roots
from paceline.runtimes.live.request import LiveOptions, ProcessTask, TrainRequest
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import ServerRun, run_server
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.timeouts import KNOCK
from paceline.runtimes.live.wire.messages import RequestRank, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.comm import ProcessGroupComm, join_group
from paceline.runtimes.live.worker.guard import run_guarded
from paceline.runtimes.live.worker.learners import decide_learners
from paceline.runtimes.live.worker.records import RunRecords, claim
from paceline.runtimes.live.worker.run import WorkerRun, replica_of
from paceline.runtimes.live.worker.server_comm import ServerClient, ServerComm
from paceline.runtimes.live.worker.stopping import AT_STEP, StopAtStep, StopByVote
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Settings, read_exactly
from paceline.runtimes.threads import too_many
from paceline.specs.source import source_files
from paceline.strategies.base import SyncPoint

_ENDPOINT = re.compile(r"(?:tcp://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")


def run_process(request: TrainRequest, info: ProcessInfo) -> int:
    if info.rank > 0 and not sys.warnoptions:  # all run the same code: what torch warns of is shown once
        warnings.simplefilter("ignore")

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Summary | ServerRun:
        task = request.task(info, heartbeat, stopping)
        if info.role == "server":
            return run_server(task)
        with closing(request.observe(task.settings)) as observer:
            summary = run_worker(task, observer)
            heartbeat.enter("finishing")
        return replace(summary, ending="missed") if summary.missed else summary

    return run_guarded(info, work)


def run_worker(task: ProcessTask, observer: Observer) -> Summary:
    """Be one worker of a run to its end.

    Only the first worker's observer is called, and that of a host's first worker with what the host lacks. A run that
    is refused writes nothing. Whatever else is raised leaves the records so far, and the connections closed.
    """
    settings, info, options = task.settings, task.info, task.options
    if settings.workers != info.workers:
        raise UsageError(
            f"the settings are for {settings.workers} workers and {info.workers} were started; "
            "a run needs one batch size per worker, and resumes with as many workers as it had"
        )
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    device = options.device_of(info)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with ExitStack() as stack:
        owned = None
        if task.resume and info.local_rank == 0 and info.launch is None:
            owned = stack.enter_context(RunLock.own(task.resume, info.node_rank))
        comm = (
            ServerComm(info.rank, info.workers, MemberStore(info, timedelta(seconds=options.timeout)))
            if prepared.servers
            else join_group(info, options, settings.collective, observer.noted)
        )
        stack.enter_context(comm)
        check_equal(comm.exchange(task.asked()))
        prepared = decide_learners(task.settings, prepared, comm, device, task.heartbeat, observer.noted)
        task = replace(task, settings=prepared.settings)
        replica = replica_of(prepared, comm, device)
        run, restored = WorkerRun(prepared, comm, replica, observer, task.heartbeat), True
        if task.resume and task.resumed:
            task.heartbeat.show(task.resume.path)
            restored = run.restore(Checkpoints(task.resume, task.resumed, settings.keep))
        if task.profile:
            task.profile.check(run.position.progress, prepared.triggers.last)
        stack.enter_context(run.records.hold(task, owned))
        task.heartbeat.show(run.records.folder.path)
        run.records.open(run.position.progress, restored=restored)
        stop = agree_to_stop(run, task)
        sampler = sample_system(run.records, task, observer, run.me.now) if info.local_rank == 0 else None
        if task.profile:
            run.profile(task.profile)
        return run.train(stop, task.before_hard_end, sampler)


def agree_to_stop(run: WorkerRun, task: ProcessTask) -> StopByVote:
    note, comm, requested = run.records.noted, run.comm, task.stop_requested
    if isinstance(comm, ServerComm):
        if comm.memory.why:
            note(f"gradients go through sockets: {comm.memory.why}")
        document = {
            "name": run.records.folder.path.name,
            "run": run.records.identity.run,
            "asked": task.asked(),
            "begun": run.me.now,
            "step": run.position.progress if task.resume else None,
            "workers": run.records.workers,
        }
        comm.open(task.info, task.options.timeout, requested, document, run.messages.slices)
        return comm.stop_agreement(note)
    if not isinstance(comm, ProcessGroupComm):
        return StopByVote(requested, note, AT_STEP, decided=requested)
    if run.prepared.strategy.sync_point is SyncPoint.AFTER_ROUND:
        return StopByVote(requested, note)
    return StopAtStep(requested, note, comm.open_store(), run.me)


def sample_system(
    records: RunRecords, task: ProcessTask, observer: Observer, since: float = 0.0
) -> SystemSampler:
    """``since`` is the run's time so far."""
    info, options = task.info, task.options
    shared = too_many(info.local_workers, options.threads, usable_cores())
    if shared and options.device == "cpu":
        observer.noted(
            f"{shared} of {info.host}: they take turns, so steps take longer than with a core for each thread and "
            "their times do not compare with those of fewer workers; use fewer workers or threads"
        )
    return SystemSampler(
        records.folder.system,
        [worker["pid"] for worker in records.workers if worker["rank"] in records.local],
        since=since,
        roots=job_roots(info),
        wanted=info.local_workers * options.threads,
    )


class JoinAddress(NamedTuple):
    endpoint: str
    secret_file: Path
    runs: Path | None = None


def join(
    run: str,
    secret_file: Path | None,
    options: LiveOptions,
    runs: Path | None,
    *,
    job: str | None,
    trust: bool,
) -> int:
    address = join_address(run, secret_file)
    secret, runs = Secret.read(address.secret_file), runs or address.runs or Path("runs")
    process = partial(join_run, address.endpoint, secret, options, runs, job=job, trust=trust)
    return run_guarded(ProcessInfo(role="joined", host=host_name()), process)


def join_address(run: str, secret_file: Path | None) -> JoinAddress:
    """Where the run is: ``run`` is its folder on this host, or HOST:PORT; ``secret_file`` is what the user gave."""
    if (folder := Path(run)).is_dir():
        return _address_in(RunFolder(folder), secret_file)
    if (endpoint := _endpoint(run)) is None:
        raise UsageError(f"{run} is neither a run's folder on this host nor HOST:PORT, such as node-a:5570")
    if secret_file is None:
        raise UsageError(
            f"{run} can be joined only with a secret file, a copy of the one that the run was given"
        )
    return JoinAddress(endpoint, secret_file)


def _address_in(folder: RunFolder, secret_file: Path | None) -> JoinAddress:
    try:
        document = read_json(folder.join)
        file = secret_file or Path(document["secret"])
        endpoint, known = _endpoint(document["endpoint"]), file.exists()
    except (FileNotFoundError, DamagedFile, KeyError, TypeError):
        endpoint, known = None, False
    if endpoint is None or not known:  # a launcher removes its secret when the run is over
        raise UsageError(
            f"{folder.path}: no run with servers is under way there; "
            "give the folder of one that still trains, or HOST:PORT with a secret file"
        )
    if secret_file is None and file.stat().st_uid != os.geteuid():
        raise UsageError(
            f"{folder.path}: the secret file {file} that it names belongs to another user; "
            "give it as the secret file if you trust it"
        )
    return JoinAddress(endpoint, file, folder.path.absolute().parent)


def _endpoint(text: str) -> str | None:
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return f"tcp://{match['host']}:{match['port']}"


def join_run(
    endpoint: str,
    secret: Secret,
    options: LiveOptions,
    runs: Path,
    heartbeat: Heartbeat,
    stop_requested: Callable[[], bool],
    *,
    job: str | None = None,
    trust: bool = False,
) -> Summary:
    """Code that the run names is executed where the user has named the same ``job``, or gives the run ``trust``."""
    asked = perf_counter()
    welcome = _request_rank(endpoint, secret)
    document = json.loads(welcome.document)
    settings = read_exactly(document["settings"], Settings)
    if settings.job.is_script:
        raise UsageError(
            f"the run at {endpoint} is one of the script {settings.job.path}, which cannot be joined: only the script "
            "has its model and data; start it with more workers"
        )
    check_named(settings, job, trust=trust)
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    name, rank = check_folder_name(document["name"]), welcome.rank
    comm = ServerComm(rank, settings.workers)
    replica = replica_of(prepared, comm, torch.device(options.device))
    run = WorkerRun(prepared, comm, replica, Observer(), heartbeat, leaving=stop_requested)
    comm.connect(secret, document["endpoints"], options.timeout, slices=run.messages.slices)
    with ExitStack() as stack:
        stack.enter_context(comm)
        # The run's folder on this host: its own, or one that is made for the records of workers that join.
        folder, identity = RunFolder(runs / name), new_identity(settings, run=document["run"])
        claim(folder, identity, lambda draft: write_config(draft, settings, "live", {}, identity=identity))
        locks = [stack.enter_context(RunLock.share(folder, node)) for node in folder.lock_nodes() or [0]]
        run.records.use(folder, identity, locks[0])
        heartbeat.show(folder.path)
        run.me.now = document["now"] + perf_counter() - asked
        say_on_stderr(f"joined {name} as rank {rank}; Ctrl-C leaves it")
        summary = run.train(comm.stop_agreement(say_on_stderr), start_together=False)
    ended = "left" if summary.ending == "left" else "ended with"
    say_on_stderr(f"rank {rank} {ended} {name} after {run.me.clock:,} steps")
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


def _request_rank(endpoint: str, secret: Secret) -> Welcome:
    try:
        with ServerClient(secret, [endpoint], SharedFlat(), patience=KNOCK) as client:
            client.send(0, RequestRank())
            welcome: Welcome = client.wait_for(Welcome).message
    except ConnectionError:
        raise UsageError(
            f"no run answers at {endpoint.removeprefix('tcp://')} to this secret; "
            "see that it is under way and that the secret file is the run's own"
        ) from None
    return welcome

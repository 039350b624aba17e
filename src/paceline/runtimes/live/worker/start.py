"""What one process of a training run does: it trains, or it serves."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import torch

from paceline.errors import UsageError, say_on_stderr
from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunLock
from paceline.records.load import SystemSampler, usable_cores
from paceline.records.summary import Observer, Summary
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.live.request import ProcessTask, TrainRequest
from paceline.runtimes.live.run_store import check_equal
from paceline.runtimes.live.server.run import ServerRun
from paceline.runtimes.live.server.start import run_server
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.worker.comm import SoloComm, join_group
from paceline.runtimes.live.worker.guard import run_guarded
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.live.worker.run_folder import hold_folder
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.live.worker.stopping import AT_STEP, StopAtStep, StopByVote
from paceline.runtimes.prepare import prepare
from paceline.runtimes.threads import too_many
from paceline.strategies.base import SyncPoint


def run_process(request: TrainRequest, info: ProcessInfo) -> int:
    """Be one worker or server, to the end; the exit code."""
    if info.rank > 0 and not sys.warnoptions:  # all run the same code: what torch warns of is shown once
        warnings.simplefilter("ignore")

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Summary | ServerRun:
        task = request.task(info, heartbeat, stopping)
        if info.role == "server":
            return run_server(task, say_on_stderr)
        with closing(request.observe(task.settings)) as observer:
            summary = run_worker(task, observer)
            heartbeat.enter("finishing")
        return replace(summary, ending="missed") if summary.missed else summary

    return run_guarded(info, work)


def run_worker(task: ProcessTask, observer: Observer) -> Summary:
    """Be one worker of a run to its end.

    Only the first worker's observer is called, and that of a host's first worker with what the host lacks. A run that
    resumes continues from the newest checkpoint that is whole on all workers; our own launcher then owns the folder
    already, else the first worker of a host takes it. A run that is refused writes nothing. Whatever else is raised
    leaves the records so far in the run folder, and the connections closed; where gloo still sums, they close with the
    process.
    """
    settings, info, options = task.settings, task.info, task.options
    if settings.workers != info.workers:
        raise UsageError(
            f"the settings are for {settings.workers} workers and {info.workers} were started; "
            "a run needs one batch size a worker, and resumes with as many workers as it had"
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
            ServerComm.at_start(info, options)
            if prepared.servers
            else join_group(info, options, device, settings.collective, observer.noted)
        )
        stack.enter_context(closed_after(comm))
        check_equal(comm.exchange(task.asked()))
        run = WorkerRun(prepared, comm, device, observer, task.heartbeat)
        if task.resume and task.resumed:
            task.heartbeat.show(task.resume.path)
            run.restore(Checkpoints(task.resume, task.resumed, settings.keep))
        held = hold_folder(comm, task, task.name or prepared.job.name, owned)
        stack.enter_context(held.lock)
        run.open(held)
        stop = _agree_to_stop(run, task)
        sampler = _sampler(run, task, observer) if info.local_rank == 0 else None
        return run.train(stop, task.before_hard_end, sampler)


@contextmanager
def closed_after(comm: SoloComm) -> Iterator[None]:
    try:
        yield
    except BaseException:
        comm.abandon()
        raise
    comm.leave()


def _agree_to_stop(run: WorkerRun, task: ProcessTask) -> StopByVote:
    """How the workers stop together; where there are servers, they are connected to here."""
    note, comm, requested = run.reporter.noted, run.comm, task.stop_requested
    if isinstance(comm, ServerComm):
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
        comm.open(task.info, task.options.timeout, requested, document)
        return comm.stop_agreement(note)
    if comm.alone:
        return StopByVote(requested, note, AT_STEP, decided=requested)
    if run.prepared.strategy.sync_point is SyncPoint.AFTER_ROUND:
        return StopByVote(requested, note)
    store, patience = comm.open_store(), task.options.timeout
    return StopAtStep(requested, note, store=store, me=run.me, patience=patience)


def _sampler(run: WorkerRun, task: ProcessTask, observer: Observer) -> SystemSampler:
    """What samples this host's load, once a host; a note where its workers share cores."""
    info, options, held = task.info, task.options, run.held
    shared = too_many(info.local_workers, options.threads, usable_cores())
    if shared and options.device == "cpu":
        observer.noted(
            f"{shared} of {info.host}: they take turns, so steps take longer than with a core for each thread and "
            "their times do not compare with those of fewer workers; use fewer workers or threads"
        )
    return SystemSampler(
        held.folder.system,
        [worker["pid"] for worker in held.workers if worker["rank"] in held.local],
        since=run.begun,
        roots=job_roots(info),
        wanted=info.local_workers * options.threads,
    )

"""``paceline train``: start the workers, or be one of them."""

import os
import sys
from contextlib import ExitStack
from dataclasses import replace

from paceline.cli.options import DEFAULT_WORKERS, KeepOptions, RunOptions
from paceline.cli.place import WhereOptions
from paceline.cli.process import Asked, join, starting, work
from paceline.cli.resuming import ResumeOptions, name_folder, repeated_settings
from paceline.cli.served import ServedOptions
from paceline.errors import BEFORE_FIRST_STEP, UsageError, say_on_stderr
from paceline.records.folder import RunFolder


def train(
    *,
    options: RunOptions | None = None,
    where: WhereOptions | None = None,
    served: ServedOptions | None = None,
    resume: ResumeOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Train for real: on this machine, or on several.

    Two local workers and the embedded digits unless told otherwise. Under torchrun, or anything that sets its
    variables, each process is one worker, or one server where the strategy has servers; without a launcher this
    command starts them itself. Exit code 1 where the run failed, for example because its loss is no number any more,
    and 3 where it did not reach --target-accuracy.
    """
    from paceline.runtimes.live.process_info import ProcessInfo

    resume, keep = resume or ResumeOptions(), keep or KeepOptions()
    asked = Asked(
        options=options or RunOptions(),
        where=where or WhereOptions(),
        served=served or ServedOptions(),
        keep=keep,
        resume=resume.folder(keep),
        trust=resume.trust,
    )
    if resume.trust and resume.resume is None and asked.served.join is None:
        raise UsageError(
            "--trust has no place without --resume or --join: the code of a new run is your own; leave it out"
        )
    if asked.served.join is not None:
        return join(asked)
    place = ProcessInfo.from_environment()
    if place:
        return work(asked, place)
    try:
        return _launch(asked)
    except KeyboardInterrupt:  # once workers run, their launcher hears it
        sys.stderr.write(f"paceline: {BEFORE_FIRST_STEP}\n")
        raise


def _launch(asked: Asked) -> int:
    """Find every mistake here, once; then start this very command line again as each worker and server."""
    # torch reads it when it is imported, before workers are forked: what goes wrong there is told by paceline.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from paceline.records.folder import check_parent, check_writable
    from paceline.records.lock import RunLock
    from paceline.runtimes.config import check_unfinished, read_settings
    from paceline.runtimes.live.launcher.launch import launch, paceline_command
    from paceline.runtimes.prepare import check_settings
    from paceline.runtimes.threads import VARIABLE, usual_threads

    where, resume = asked.where, asked.resume
    live = where.live(resume)
    if resume and where.threads is None and VARIABLE in os.environ and usual_threads() != live.threads:
        say_on_stderr(
            f"{VARIABLE}={os.environ[VARIABLE]} is not used: the run goes on with --threads {live.threads}, as it "
            "began; --threads says otherwise"
        )
    workers = where.workers
    if workers is None:
        workers = read_settings(resume).workers // (where.nodes or 1) if resume else DEFAULT_WORKERS
    plan = where.plan(workers)
    arguments = sys.argv[1:]
    with ExitStack() as stack:
        start = stack.enter_context(starting(live.device))
        servers = asked.servers()
        if resume:  # before anything is imported or started; the workers share it
            if plan.nodes == 1 and plan.workers != read_settings(resume).workers:
                resume = _resharded(asked, resume, plan.workers)
                asked = replace(asked, resume=resume)
            arguments = name_folder(arguments, resume)
            check_unfinished(resume, asked.settings(plan.nodes * plan.workers))
            check_writable(resume)
            stack.enter_context(RunLock.own(resume, plan.node_rank))
            plan = replace(
                plan, resume=resume.path, again=repeated_settings(asked.options, trust=asked.trust)
            )
        check_settings(asked.settings(plan.nodes * plan.workers))
        if not resume:
            check_parent(asked.keep.parent)
        plan = replace(plan, servers=servers, silence=live.silence, hang=live.hang)
        return launch(paceline_command(arguments), plan, start=start)


def _resharded(asked: Asked, resume: RunFolder, workers: int) -> RunFolder:
    """A folder for another number of workers, made when nothing else is wrong with what was asked for."""
    from paceline.cli.reshard import make_folder
    from paceline.runtimes.config import check_unfinished, read_settings

    check_unfinished(resume, asked.settings(read_settings(resume).workers))
    return make_folder(resume, workers, trust=asked.trust)

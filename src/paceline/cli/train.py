"""``paceline train``: start the workers, or be one of them."""

import os
import sys
from contextlib import ExitStack
from dataclasses import replace

from paceline.cli.options import DEFAULT_WORKERS, KeepOptions, RunOptions
from paceline.cli.place import WhereOptions
from paceline.cli.process import Asked, join, starting, work
from paceline.cli.resuming import ResumeOptions
from paceline.cli.served import ServedOptions
from paceline.errors import Mistake


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
    command starts them itself.
    """
    from paceline.runtimes.live.place import Place

    resume, keep = resume or ResumeOptions(), keep or KeepOptions()
    resume.refuse(keep)
    asked = Asked(
        options=options or RunOptions(),
        where=where or WhereOptions(),
        served=served or ServedOptions(),
        keep=keep,
        resume=resume.folder,
        trust=resume.trust,
    )
    if resume.trust and resume.resume is None and asked.served.join is None:
        raise Mistake(
            "--trust has no place without --resume or --join: the code of a new run is your own; leave it out"
        )
    if asked.served.join is not None:
        return join(asked)
    place = Place.from_environment()
    return work(asked, place) if place else _launch(asked)


def _launch(asked: Asked) -> int:
    """Find every mistake here, once; then start this very command line again as each worker and server."""
    # torch reads it when it is imported, before workers are forked: what goes wrong there is told by paceline.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from paceline.records.create import check_parent
    from paceline.records.lock import RunLock
    from paceline.runtimes.config import read_settings
    from paceline.runtimes.live.launch import launch, train_command
    from paceline.runtimes.prepare import prepare

    where, resume = asked.where, asked.resume
    live = where.live(resume)
    workers = where.workers
    if workers is None:
        workers = read_settings(resume).workers // (where.nodes or 1) if resume else DEFAULT_WORKERS
    plan = where.plan(workers)
    with ExitStack() as stack:
        start = stack.enter_context(starting(live.device))
        servers = asked.servers()
        settings = asked.settings(plan.nodes * plan.workers)
        if resume:  # before anything is imported or started; the workers share it
            stack.enter_context(RunLock.own(resume, plan.node_rank))
        prepare(settings)
        check_parent(asked.keep.parent)
        plan = replace(plan, servers=servers, silence=live.silence, hang=live.hang, trust=asked.trust)
        plan = replace(plan, resume=resume.path if resume else None)
        return launch(train_command(sys.argv[1:]), plan, start=start)

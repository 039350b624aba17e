"""``paceline train``: start the workers, or be one of them."""

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.cli.importing import spare_compiler
from paceline.cli.options import DEFAULT_WORKERS, KeepOptions, RunOptions, given_options
from paceline.cli.place import WhereOptions, rerun
from paceline.cli.resuming import ResumeOptions, asked_settings, name_folder, repeated_settings
from paceline.errors import BEFORE_FIRST_STEP, UsageError, say_on_stderr
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from paceline.records.summary import Observer
    from paceline.runtimes.live.request import TrainRequest

_OWN_OF_A_JOINER = ("--device", "--threads", "--timeout", "--secret-file", "--join")


def train(
    *,
    options: RunOptions | None = None,
    where: WhereOptions | None = None,
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

    options, where = options or RunOptions(), where or WhereOptions()
    resume, keep = resume or ResumeOptions(), keep or KeepOptions()
    folder = resume.folder(keep)
    if resume.trust and resume.resume is None and where.join is None:
        raise UsageError(
            "--trust has no place without --resume or --join: the code of a new run is your own; leave it out"
        )
    if where.join is not None:
        return _join(where.join, options, where, resume, keep)
    info = ProcessInfo.from_environment()
    if info is None:
        # torch reads it when it is imported, before workers are forked: what goes wrong there is told by paceline.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from paceline.runtimes.live.request import TrainRequest

        request = TrainRequest(
            settings=partial(asked_settings, options, trust=resume.trust),
            options=where.live(folder),
            observe=partial(_observe, keep),
            runs=keep.parent,
            resume=folder,
            name=keep.name or "",
            trust=resume.trust,
        )
        if info is None:
            return _launch(request, options, where)
    except KeyboardInterrupt:  # once workers run, their launcher hears it
        if info is None:
            sys.stderr.write(f"paceline: {BEFORE_FIRST_STEP}\n")
        raise
    from paceline.runtimes.live.worker.start import run_process

    spare_compiler()
    if info.launch is None:
        info = where.under_launcher(info.with_servers(request.servers()))
    return run_process(request, info)


def _launch(request: "TrainRequest", options: RunOptions, where: WhereOptions) -> int:
    from paceline.cli.reshard import make_folder
    from paceline.runtimes.config import read_live
    from paceline.runtimes.live.launcher.start import launch_training
    from paceline.runtimes.threads import VARIABLE, usual_threads

    folder, threads = request.resume, request.options.threads
    if folder and where.threads is None and VARIABLE in os.environ and usual_threads() != threads:
        say_on_stderr(
            f"{VARIABLE}={os.environ[VARIABLE]} is not used: the run goes on with --threads {threads}, as it "
            "began; --threads says otherwise"
        )
    workers = where.workers
    if workers is None:
        workers = read_live(folder).settings.workers // (where.nodes or 1) if folder else DEFAULT_WORKERS
    again = repeated_settings(options, trust=request.trust) if folder else {}
    return launch_training(
        request,
        replace(where.plan(workers), again=again),
        rerun,
        lambda folder: name_folder(sys.argv[1:], folder) if folder else sys.argv[1:],
        partial(make_folder, trust=request.trust),
    )


def _observe(keep: KeepOptions, settings: Settings) -> "Observer":
    from paceline.reports.progress import Tee
    from paceline.reports.trace import TraceObserver

    return Tee([*keep.observers(settings, "wall"), TraceObserver()])


def _join(
    run: str, options: RunOptions, where: WhereOptions, resume: ResumeOptions, keep: KeepOptions
) -> int:
    kept = {
        "--resume": resume.resume,
        "--name": keep.name,
        "--json": keep.as_json,
        "--tensorboard": keep.tensorboard,
    }
    given = [option for option in given_options(where) if option not in _OWN_OF_A_JOINER]
    given += [option for option, value in kept.items() if value]
    given += [option for option in given_options(options) if option != "--job"]
    for option in given:
        raise UsageError(
            f"{option} has no place beside --join {run}: the run that is joined decides it; leave it out"
        )
    from paceline.runtimes.live.worker.start import join

    spare_compiler()
    return join(run, where.secret_file, where.live(None), keep.runs, job=options.job, trust=resume.trust)

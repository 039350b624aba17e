"""``paceline train``: start the workers, or be one of them; ``paceline reshard``."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from paceline.cli.importing import skip_compiler_import
from paceline.cli.options import (
    RECORD,
    WHERE,
    KeepOptions,
    ProcessOptions,
    RunOptions,
    Whole,
    given,
    given_for,
    given_options,
)
from paceline.cli.report import ReportObserver
from paceline.clusters.profile import MAKE, machine_profile
from paceline.errors import BEFORE_FIRST_STEP, UsageError, say_on_stderr
from paceline.records.folder import LATEST, RunFolder, latest_run
from paceline.records.summary import Started
from paceline.reports.progress import Tee
from paceline.reports.trace import TraceObserver
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.settings import DEFAULT_WORKERS

if TYPE_CHECKING:
    from paceline.reports.forecast import Expectation
    from paceline.runtimes.live.request import LiveOptions, TrainRequest
    from paceline.runtimes.live.worker.profiling import ProfiledSteps
    from paceline.runtimes.settings import Settings
    from paceline.studies.findings import Finding

_JOINERS_OWN = ("--device", "--threads", "--timeout", "--secret-file", "--join", "--trust", "--runs", "--job")


@Parameter(name="*")
@dataclass(kw_only=True)
class WhereOptions(ProcessOptions):
    """None means that an option was not given."""

    device: Annotated[Literal["cpu", "cuda"] | None, Parameter(group=WHERE)] = None
    """What computes (default cpu)."""
    profile_steps: Annotated[str | None, Parameter(group=RECORD)] = None
    """Run the torch profiler in these steps of every worker, such as 20-24, and keep its traces in profile/."""
    join: Annotated[str | None, Parameter(group=WHERE)] = None
    """Join a run with servers as one more worker: its folder on this host, or HOST:PORT with --secret-file."""

    def profiled(self) -> "ProfiledSteps | None":
        from paceline.runtimes.live.worker.profiling import ProfiledSteps

        if self.profile_steps is None:
            return None
        return ProfiledSteps.parse(self.profile_steps, "--profile-steps")

    def live(self, resume: RunFolder | None) -> "LiveOptions":
        from paceline.runtimes.config import read_live
        from paceline.runtimes.live.request import LiveOptions

        return LiveOptions(**(read_live(resume).machinery if resume else {}) | given_for(LiveOptions, self))


@Parameter(name="*")
@dataclass(kw_only=True)
class ResumeOptions:
    """Whether this is a run of its own."""

    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a run that stopped, or 'latest': go on from its last whole checkpoint."""
    trust: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """With --resume or --join: run code that the run names, also where it has changed or lies in the run folder."""
    report: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """Make report.html in the run folder at the end."""

    def folder(self, keep: KeepOptions) -> RunFolder | None:
        if self.resume is None:
            return None
        for option, value in (
            ("--name", keep.name),
            ("--runs", None if self.resume == LATEST else keep.runs),
        ):
            if value is not None:
                raise UsageError(
                    f"{option} {value} cannot be used with --resume: a run keeps its folder; leave it out"
                )
        return latest_run(keep.parent) if self.resume == LATEST else RunFolder(self.resume)


def train(
    *,
    options: RunOptions | None = None,
    where: WhereOptions | None = None,
    resume: ResumeOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Train for real: on this machine, or on several.

    Two local workers and the embedded digits by default. Under torchrun, or anything that sets its
    variables, each process is one worker, or one server where the strategy has servers; without a launcher this
    command starts them itself. Exit code 1 where the run failed, for example because its loss is not finite,
    and 3 where it did not reach --target-accuracy.
    """
    options, where = options or RunOptions(), where or WhereOptions()
    resume, keep = resume or ResumeOptions(), keep or KeepOptions()
    if where.join is not None:
        return _join(where.join, options, where, resume, keep)
    if resume.trust and resume.resume is None:
        raise UsageError(
            "--trust has no place without --resume or --join: the code of a new run is your own; leave it out"
        )
    info = ProcessInfo.from_environment()
    options, recipe = options.with_recipe()
    if recipe and (info is None or (info.launch is None and info.role == "worker" and info.rank == 0)):
        say_on_stderr(recipe)
    if info is None:
        # torch reads it when it is imported, before workers are forked: paceline reports what goes wrong there.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if where.profile_steps is not None:
        # torch's profiler writes to stderr when it starts and stops
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        from paceline.runtimes.live.request import TrainRequest

        folder = RunFolder(info.resume) if info and info.resume else resume.folder(keep)
        live = where.live(folder)
        offer = live.device == "cpu" and not keep.as_json
        request = TrainRequest(
            asked=options.settings,
            given=given(options),
            options=live,
            observe=lambda settings: Tee(
                [
                    *keep.observers(settings, "wall", partial(_expect, settings, offer), diagnose),
                    TraceObserver(),
                    ReportObserver(make=resume.report, quiet=keep.as_json),
                ]
            ),
            runs=keep.parent,
            resume=folder,
            name=keep.name or "",
            trust=resume.trust,
            profile=where.profiled(),
        )
        return _launch(request, where) if info is None else _run_process(request, where, info)
    except KeyboardInterrupt:
        if info is None:  # once workers run, their launcher handles it
            say_on_stderr(BEFORE_FIRST_STEP)
        raise


def _expect(settings: "Settings", offer: bool, run: Started) -> "Expectation | None":
    """Predict the run by the profile of this machine; where there is none, ``offer`` to make one."""
    profile = machine_profile(run.threads or 1)
    known = profile.exists()
    # Of workers with several threads no links are measured, so that a profile would predict one worker only.
    if offer and not known and run.subject is not None and run.threads == 1:
        say_on_stderr(f"no profile of this machine: {MAKE}; then every run is predicted")
    if run.probe is None and not known:
        return None
    from paceline.reports.forecast import expect

    return expect(settings, run, profile if known else None)


def diagnose(folder: Path) -> "Sequence[Finding]":
    from paceline.reports.findings import diagnose

    return diagnose(folder)


def _launch(request: "TrainRequest", where: WhereOptions) -> int:
    from paceline.cli.main import main
    from paceline.runtimes.config import read_live
    from paceline.runtimes.live.launcher.launch import launch_training
    from paceline.runtimes.threads import VARIABLE, usual_threads

    folder, threads = request.resume, request.options.threads
    if folder and where.threads is None and VARIABLE in os.environ and usual_threads() != threads:
        say_on_stderr(
            f"{VARIABLE}={os.environ[VARIABLE]} is ignored: the run goes on with --threads {threads}, as it "
            "began; give --threads to change that"
        )
    workers = where.workers
    if workers is None:
        workers = read_live(folder).settings.workers // (where.nodes or 1) if folder else DEFAULT_WORKERS
    return launch_training(request, where.plan(workers), main, sys.argv[1:])


def _run_process(request: "TrainRequest", where: WhereOptions, info: ProcessInfo) -> int:
    from paceline.runtimes.live.worker.start import run_process

    skip_compiler_import()
    if info.launch is None:
        info = where.under_launcher(info.with_servers(request.servers()))
    return run_process(request, info)


def _join(
    run: str, options: RunOptions, where: WhereOptions, resume: ResumeOptions, keep: KeepOptions
) -> int:
    for option in (option for group in (where, resume, keep, options) for option in given_options(group)):
        if option not in _JOINERS_OWN:
            raise UsageError(
                f"{option} cannot be used with --join {run}: the run that is joined decides it; leave it out"
            )
    from paceline.runtimes.live.worker.start import join

    skip_compiler_import()
    return join(run, where.secret_file, where.live(None), keep.runs, job=options.job, trust=resume.trust)


def reshard(
    run: Path,
    *,
    workers: Annotated[int, Whole, Parameter(name=["--workers", "-np"])],
    runs: Annotated[Path | None, Parameter(group=RECORD)] = None,
    trust: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False,
) -> None:
    """Make a run folder that resumes a stopped run with another number of workers.

    On one host 'paceline train --resume RUN --workers N' does so by itself. For several hosts, make the folder where
    the checkpoints of all ranks are, see that every host has it, and resume it there.

    Args:
        run: The folder of the run that stopped; it stays as it is.
        workers: Workers of all hosts together; they share the run's global batch.
        runs: Make the new folder in this one (default: beside the old one).
        trust: Run the job's code, also where it has changed or lies in the run folder.
    """
    from paceline.runtimes.live.failures import command
    from paceline.runtimes.live.launcher import resharding

    new = resharding.reshard(RunFolder(run), workers, trust=trust, runs=runs)
    sys.stderr.write(f"Resume: {command('train', resume=new.path)}\n")

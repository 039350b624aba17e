"""``paceline train``: start the workers, or be one of them."""

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from paceline.cli.options import DEFAULT_WORKERS, RECORD, WHERE, KeepOptions, RunOptions, whole
from paceline.cli.place import PlaceOptions
from paceline.cli.resuming import resumed_settings
from paceline.errors import Mistake
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from paceline.runtimes.live.options import LiveOptions
    from paceline.runtimes.live.place import Place


@Parameter(name="*")
@dataclass(kw_only=True)
class WhereOptions(PlaceOptions):
    """None means that an option was not given."""

    device: Annotated[Literal["cpu", "cuda"] | None, Parameter(group=WHERE)] = None
    """What computes (default cpu)."""
    backend: Annotated[str | None, Parameter(group=WHERE)] = None
    """What workers talk over: shm, gloo or nccl (default shm on one host, nccl on cuda, gloo across or by schedule)."""
    threads: Annotated[int | None, Parameter(converter=whole, group=WHERE)] = None
    """Threads a worker computes with (default 1 where workers share a machine)."""
    timeout: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds that a worker waits in an exchange before it gives the others up (default 300)."""

    def live(self, resume: RunFolder | None) -> "LiveOptions":
        """The machinery under the workers: as asked for, else as an earlier run had it, else as usual."""
        from paceline.runtimes.config import read_machinery
        from paceline.runtimes.live.options import LiveOptions

        known = read_machinery(resume) if resume else {}
        for name in ("device", "backend", "threads", "timeout"):
            if (given := getattr(self, name)) is not None:
                known[name] = given
        return LiveOptions(**known)


@Parameter(name="*")
@dataclass(kw_only=True)
class ResumeOptions:
    """Whether this is a run of its own."""

    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a run that stopped: go on from its last whole checkpoint."""

    @property
    def folder(self) -> RunFolder | None:
        """The earlier run's folder."""
        return RunFolder(self.resume) if self.resume else None

    def refuse(self, keep: KeepOptions) -> None:
        """A run that goes on keeps its folder."""
        for option, given in (("--name", keep.name), ("--runs", keep.runs)):
            if self.resume and given is not None:
                raise Mistake(
                    f"{option} {given} has no place beside --resume: a run keeps its folder; leave it out"
                )


def train(
    *,
    options: RunOptions | None = None,
    where: WhereOptions | None = None,
    resume: ResumeOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Train for real: on this machine, or on several.

    Two local workers and the embedded digits unless told otherwise. Under torchrun, or anything that sets its
    variables, each process is one worker; without a launcher this command starts the workers itself.
    """
    from paceline.runtimes.live.place import Place

    options, where, keep = options or RunOptions(), where or WhereOptions(), keep or KeepOptions()
    resume = resume or ResumeOptions()
    resume.refuse(keep)
    place = Place.from_environment()
    if place:
        return _work(options, where, resume.folder, keep, place)
    return _launch(options, where, resume.folder, keep)


def _launch(options: RunOptions, where: WhereOptions, resume: RunFolder | None, keep: KeepOptions) -> int:
    """Find every mistake here, once; then start this very command line again as each worker."""
    from paceline.records.create import check_parent
    from paceline.runtimes.config import read_settings
    from paceline.runtimes.live.launch import launch, train_command
    from paceline.runtimes.prepare import prepare

    where.live(resume)
    workers = where.workers
    if workers is None:
        workers = read_settings(resume).workers // (where.nodes or 1) if resume else DEFAULT_WORKERS
    plan = where.plan(workers)
    prepare(_settings(options, plan.nodes * plan.workers, resume))
    check_parent(keep.parent)
    return launch(train_command(sys.argv[1:]), plan)


def _work(
    options: RunOptions, where: WhereOptions, resume: RunFolder | None, keep: KeepOptions, place: "Place"
) -> int:
    """Be one worker, to the end."""
    from paceline.records.summary import Summary
    from paceline.reports.progress import Tee
    from paceline.reports.trace import write_trace
    from paceline.runtimes.live.guard import run_guarded
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.worker import run_worker

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Summary:
        if place.launch is None:
            where.refuse(place)
        settings = _settings(options, place.workers, resume)
        with closing(Tee(keep.observers(settings, "wall"))) as observer:
            summary = run_worker(
                settings,
                options=where.live(resume),
                place=place,
                runs=keep.parent,
                observer=observer,
                heartbeat=heartbeat,
                stop_requested=stopping,
                before_hard_end=stopping.before_hard_end,
                resume=resume,
                name=keep.name,
            )
        if place.rank == 0:
            write_trace(resume or RunFolder(keep.parent / summary.name))
        return summary

    return run_guarded(place, work)


def _settings(options: RunOptions, workers: int, resume: RunFolder | None) -> Settings:
    return options.settings(workers) if resume is None else resumed_settings(options, workers, resume)

"""``paceline train``: start the workers, or be one of them."""

import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from paceline.cli.options import RECORD, WHERE, RunOptions
from paceline.errors import Mistake
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from paceline.records.observer import Observer
    from paceline.runtimes.live.place import Place
    from paceline.runtimes.live.plan import Launch

CHANGEABLE = ("--epochs", "--iterations", "--target-accuracy")
"""What a resumed run may be given anew: how long it goes on."""

DEFAULT_WORKERS = 2


@Parameter(name="*")
@dataclass(kw_only=True)
class WhereOptions:
    """None means that an option was not given."""

    workers: Annotated[int | None, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Worker processes on this host (default 2)."""
    nodes: Annotated[int | None, Parameter(name=["--nodes", "-n"], group=WHERE)] = None
    """Hosts that train together (default 1); start the command on each."""
    node_rank: Annotated[int | None, Parameter(name=["--node-rank", "-nr"], group=WHERE)] = None
    """Which of the hosts this is, from 0."""
    address: Annotated[str | None, Parameter(name=["--address", "-a"], group=WHERE)] = None
    """The host of node rank 0, as the others reach it."""
    port: Annotated[int | None, Parameter(name=["--port", "-p"], group=WHERE)] = None
    """A free port on that host (default 29500)."""
    device: Annotated[Literal["cpu", "cuda"], Parameter(group=WHERE)] = "cpu"
    """What computes."""
    backend: Annotated[str | None, Parameter(group=WHERE)] = None
    """What torch.distributed talks over (default gloo on cpu, nccl on cuda)."""

    def plan(self, workers: int) -> "Launch":
        """The launch of so many workers on this host."""
        from paceline.runtimes.live.plan import Launch

        return Launch(
            nodes=1 if self.nodes is None else self.nodes,
            workers=workers,
            address=self.address,
            port=self.port,
            node_rank=self.node_rank or 0,
        )

    def refuse(self, place: "Place") -> None:
        """Under a launcher the launcher decides; saying it twice must not say two things."""
        decided = {
            "--nodes": self.nodes,
            "--node-rank": self.node_rank,
            "--address": self.address,
            "--port": self.port,
        }
        for option, given in decided.items():
            if given is not None:
                raise Mistake(
                    f"{option} {given} contradicts the launcher, which set RANK={place.rank}; "
                    "leave the option out, or unset RANK"
                )
        if self.workers is not None and self.workers != place.local_workers:
            raise Mistake(
                f"--workers {self.workers} differs from the {place.local_workers} that the launcher started "
                "on this host; leave the option out"
            )


@Parameter(name="*")
@dataclass(kw_only=True)
class KeepOptions:
    """What is kept and shown."""

    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a run that stopped: go on from its last whole checkpoint."""
    runs: Annotated[Path, Parameter(group=RECORD)] = Path("runs")
    """Where run folders are made."""
    name: Annotated[str | None, Parameter(group=RECORD)] = None
    """What to call the run (default: the job)."""
    tensorboard: Annotated[bool, Parameter(group=RECORD, negative=())] = False
    """Write TensorBoard event files into the run folder as well."""
    as_json: Annotated[bool, Parameter(name="--json", group=RECORD, negative=())] = False
    """One JSON document on stdout instead of text."""

    def observer(self, settings: Settings) -> "Observer":
        """Who is told of the run."""
        from paceline.records.tensorboard import TensorBoardObserver
        from paceline.reports.progress import ConsoleObserver, JsonObserver, Tee

        told: list[Observer] = [JsonObserver(settings.to_json()) if self.as_json else ConsoleObserver()]
        if self.tensorboard:
            told.insert(0, TensorBoardObserver())
        return Tee(told)


def train(
    *, options: RunOptions | None = None, where: WhereOptions | None = None, keep: KeepOptions | None = None
) -> int:
    """Train for real: on this machine, or on several.

    Two local workers and the embedded digits unless told otherwise. Under torchrun, or anything that sets its
    variables, each process is one worker; without a launcher this command starts the workers itself.
    """
    from paceline.runtimes.live.place import Place

    options, where, keep = options or RunOptions(), where or WhereOptions(), keep or KeepOptions()
    if keep.tensorboard and not find_spec("tensorboard"):
        raise Mistake("--tensorboard needs the tensorboard package: pip install 'paceline[tensorboard]'")
    if keep.resume and keep.name is not None:
        raise Mistake(
            f"--name {keep.name} has no place beside --resume: a run keeps its folder; leave it out"
        )
    place = Place.from_environment()
    return _work(options, where, keep, place) if place else _launch(options, where, keep)


def _launch(options: RunOptions, where: WhereOptions, keep: KeepOptions) -> int:
    """Find every mistake here, once; then start this very command line again as each worker."""
    from paceline.runtimes.live.launch import launch, train_command
    from paceline.runtimes.live.options import LiveOptions
    from paceline.runtimes.prepare import prepare

    LiveOptions(device=where.device, backend=where.backend)
    workers = where.workers
    if workers is None:
        workers = _earlier(keep.resume).workers // (where.nodes or 1) if keep.resume else DEFAULT_WORKERS
    plan = where.plan(workers)
    prepare(_settings(options, plan.nodes * plan.workers, keep.resume))
    return launch(train_command(sys.argv[1:]), plan)


def _work(options: RunOptions, where: WhereOptions, keep: KeepOptions, place: "Place") -> int:
    """Be one worker, to the end."""
    from paceline.records.summary import Summary
    from paceline.reports.trace import write_trace
    from paceline.runtimes.live.guard import run_guarded
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.options import LiveOptions
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.worker import run_worker

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Summary:
        if place.launch is None:
            where.refuse(place)
        settings = _settings(options, place.workers, keep.resume)
        summary = run_worker(
            settings,
            options=LiveOptions(device=where.device, backend=where.backend),
            place=place,
            runs=keep.runs,
            observer=keep.observer(settings),
            heartbeat=heartbeat,
            stop_requested=stopping,
            resume=RunFolder(keep.resume) if keep.resume else None,
            name=keep.name,
        )
        if place.rank == 0:
            write_trace(RunFolder(keep.resume or keep.runs / summary.name))
        return summary

    return run_guarded(place, work)


def _settings(options: RunOptions, workers: int, resume: Path | None) -> Settings:
    if resume is None:
        return options.settings(workers)
    if fixed := [option for option in options.given() if option not in CHANGEABLE]:
        raise Mistake(f"{fixed[0]} cannot change when a run resumes; leave it out, or start a new run")
    earlier = _earlier(resume)
    if workers != earlier.workers:
        raise Mistake(
            f"{resume} ran with {earlier.workers} workers and cannot resume with {workers}; "
            "give it as many as it had"
        )
    if options.epochs is not None or options.iterations is not None:
        earlier = replace(earlier, epochs=options.epochs, iterations=options.iterations)
    if options.target_accuracy is not None:
        earlier = replace(earlier, target_accuracy=options.target_accuracy)
    return earlier


def _earlier(resume: Path) -> Settings:
    from paceline.runtimes.config import read_settings

    return read_settings(RunFolder(resume))

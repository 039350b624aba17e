"""The options that several commands share: what is trained, where workers run, what is kept."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from cyclopts import Group, Parameter, Token

from paceline.api.recipes import RECIPES, follow
from paceline.api.settings import run_arguments, run_settings
from paceline.collectives import SCHEDULES
from paceline.errors import UsageError, say_on_stderr
from paceline.records.files import to_document
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import NEEDED, Secret
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from paceline.records.summary import Observer
    from paceline.reports.progress import Diagnose, Expect
    from paceline.runtimes.live.launcher.processes import LaunchPlan
    from paceline.runtimes.live.worker.guard import HasEnding

WorkerTask = Callable[[ProcessInfo, Heartbeat, StopRequest], "HasEnding"]

JOB = Group("What is trained", sort_key=1)
AGREE = Group("How the workers agree", sort_key=2)
LENGTH = Group("How long", sort_key=3)
WHERE = Group("Where", sort_key=4)
RECORD = Group("What is kept and shown", sort_key=5)


def whole(kind: object, tokens: Sequence[Token]) -> int:  # noqa: ARG001
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def accuracy(kind: object, tokens: Sequence[Token]) -> float:  # noqa: ARG001
    try:
        return float(tokens[0].value)
    except ValueError:
        raise ValueError(
            f"{tokens[0].value!r} is not an accuracy: it must lie between 0 and 1, such as 0.97"
        ) from None


Whole = Parameter(converter=whole)
Accuracy = Parameter(converter=accuracy)


def given(options: "DataclassInstance") -> dict[str, Any]:
    """The options that were given, by name; those that were not are None, or False."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def given_for(kind: "type[DataclassInstance]", options: "DataclassInstance") -> dict[str, Any]:
    """The options that were given and that are fields of ``kind``."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given(options).items() if name in names}


def given_options(options: "DataclassInstance") -> list[str]:
    return [f"--{name.removeprefix('as_').replace('_', '-')}" for name in given(options)]


@Parameter(name="*")
@dataclass(kw_only=True)
class RunOptions:
    """None means that an option was not given."""

    job: Annotated[str | None, Parameter(group=JOB)] = None
    """Your own job by import path, such as my_module:build, instead of the parts below."""
    data: Annotated[str | None, Parameter(group=JOB)] = None
    """The data (default digits); see 'paceline data'."""
    data_dir: Annotated[str | None, Parameter(group=JOB)] = None
    """The folder that holds the data's files."""
    model: Annotated[str | None, Parameter(group=JOB)] = None
    """The model (default cnn); see 'paceline models'."""
    optimizer: Annotated[str | None, Parameter(group=JOB)] = None
    """The optimizer (default sgd), such as sgd:lr=0.05,momentum=0.9; see 'paceline optimizers'."""
    lr: Annotated[float | None, Parameter(name=["--lr", "--learning-rate"], group=JOB)] = None
    """The optimizer's learning rate, for short."""
    schedule: Annotated[str | None, Parameter(group=JOB)] = None
    """The learning-rate schedule (default constant); see 'paceline schedules'."""
    accumulate: Annotated[int | None, Whole, Parameter(group=JOB)] = None
    """Mini-batches whose gradients are added up before each step (default 1)."""
    clip_norm: Annotated[float | None, Parameter(group=JOB)] = None
    """Scale gradients down to this norm wherever an optimizer steps (default: leave them)."""
    precision: Annotated[str | None, Parameter(group=JOB)] = None
    """Precision of forward and loss: fp32 (default), or bf16 by torch.autocast."""
    label_smoothing: Annotated[float | None, Parameter(group=JOB)] = None
    """Train on targets of which this part goes to all classes, such as 0.1 (default 0); the test loss stays plain."""
    scale_lr: Annotated[Literal["linear", "sqrt", "none"] | None, Parameter(group=JOB)] = None
    """Multiply the learning rate by k, or its root, for a global batch of k reference batches (default none)."""
    reference_batch: Annotated[float | None, Parameter(group=JOB)] = None
    """The batch that the learning rate was chosen for, such as 256 (default: one worker's mini-batch)."""
    recipe: Annotated[
        str | None,
        Parameter(group=JOB, help=f"Options that belong together: {', '.join(RECIPES)}; those you give win."),
    ] = None
    strategy: Annotated[str | None, Parameter(group=AGREE)] = None
    """How workers agree (default all-reduce), such as local-sgd:period=16; see 'paceline strategies'."""
    servers: Annotated[int | None, Whole, Parameter(group=AGREE)] = None
    """Servers that keep the parameters, each an even part (default 1); for ps, ssp and async."""
    batch_size: Annotated[str | None, Parameter(name=["--batch-size", "-b"], group=AGREE)] = None
    """Samples of a worker's mini-batch (default 32); 48,16 gives each worker its own."""
    slow: Annotated[list[str] | None, Parameter(group=AGREE, negative=())] = None
    """Slow a rank down: 1=2.5 makes rank 1 take 2.5 times as long to compute. May be repeated."""
    slow_turns: Annotated[int | None, Whole, Parameter(group=AGREE)] = None
    """Slow ranks alternate this many slow steps with as many fast ones; odd ranks begin fast (default: always slow)."""
    buffers: Annotated[Literal["average", "rank0"] | None, Parameter(group=AGREE)] = None
    """Batch-norm statistics: averaged for evaluations and at the end (default), or rank 0's, broadcast at each step."""
    collective: Annotated[
        str | None,
        Parameter(group=AGREE, help=f"How all-reduces are done: native (default), {', '.join(SCHEDULES)}."),
    ] = None
    codec: Annotated[str | None, Parameter(group=AGREE)] = None
    """What is sent in place of whole gradients (default identity), such as int8 or top-k; see 'paceline codecs'."""
    epochs: Annotated[int | None, Whole, Parameter(group=LENGTH)] = None
    """Passes over the training data (default 30)."""
    iterations: Annotated[int | None, Whole, Parameter(name=["--iterations", "-i"], group=LENGTH)] = None
    """Steps per worker, instead of epochs."""
    target_accuracy: Annotated[float | None, Accuracy, Parameter(group=LENGTH)] = None
    """Stop as soon as an evaluation reaches this accuracy, such as 0.97."""
    seed: Annotated[int | None, Whole, Parameter(group=LENGTH)] = None
    """Decides the initial weights and the order of the data (default 1)."""
    evaluate_every: Annotated[str | None, Parameter(group=RECORD)] = None
    """'1 epoch' (default), '500 steps' or 'never'."""
    checkpoint_every: Annotated[str | None, Parameter(group=RECORD)] = None
    """'1 epoch' (default), '500 steps' or 'never'."""
    keep: Annotated[int | None, Whole, Parameter(group=RECORD)] = None
    """How many checkpoints are kept (default 3)."""

    def __post_init__(self) -> None:
        run_arguments(given(self))

    def with_recipe(self) -> tuple[Self, str]:
        """The options that a recipe stands for, as if they had been given, and a sentence that says so."""
        if self.recipe is None:
            return self, ""
        changed, sentence = follow(self.recipe, given(self))
        return replace(self, recipe=None, **changed), sentence

    def settings(self, workers: int | None) -> Settings:
        """Resolve the options for this many workers; None leaves out the options of single ranks."""
        return run_settings(given(self), workers)


@Parameter(name="*")
@dataclass(kw_only=True)
class FolderOptions:
    """What is kept of a run."""

    runs: Annotated[Path | None, Parameter(group=RECORD)] = None
    """Where run folders are made (default runs)."""
    name: Annotated[str | None, Parameter(group=RECORD)] = None
    """What to call the run (default: the job)."""
    tensorboard: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """Write TensorBoard event files into the run folder as well."""

    def __post_init__(self) -> None:
        if self.tensorboard and not find_spec("tensorboard"):
            raise UsageError(
                "--tensorboard needs the tensorboard package: pip install 'paceline[tensorboard]'"
            )

    @property
    def parent(self) -> Path:
        return self.runs or Path("runs")

    def watching(self, settings: Settings, clock: str) -> "Observer":
        """What shows a simulation."""
        from paceline.reports.progress import Tee

        return Tee(self.observers(settings, clock))

    def observers(
        self,
        settings: Settings,
        clock: str,
        expect: "Expect" = lambda _: None,
        diagnose: "Diagnose" = lambda _: (),
    ) -> "list[Observer]":
        from paceline.reports.tensorboard import TensorBoardObserver

        shown = self.shown(settings, clock, expect, diagnose)
        return [TensorBoardObserver(), shown] if self.tensorboard else [shown]

    def shown(self, _: Settings, clock: str, expect: "Expect", diagnose: "Diagnose") -> "Observer":
        from paceline.reports.progress import ConsoleObserver

        return ConsoleObserver(clock=clock, expect=expect, diagnose=diagnose)


@Parameter(name="*")
@dataclass(kw_only=True)
class KeepOptions(FolderOptions):
    """What is kept and shown."""

    as_json: Annotated[bool, Parameter(name="--json", group=RECORD, negative=(), show_default=False)] = False
    """One JSON document on stdout instead of text."""

    def given(self) -> list[str]:
        return [option for option in given_options(self) if option != "--json"]

    def shown(self, settings: Settings, clock: str, expect: "Expect", diagnose: "Diagnose") -> "Observer":
        from paceline.reports.progress import JsonObserver

        if self.as_json:
            return JsonObserver(to_document(settings), expect=expect, diagnose=diagnose)
        return super().shown(settings, clock, expect, diagnose)


@Parameter(name="*")
@dataclass(kw_only=True)
class PlaceOptions:
    """Where workers run; None means that an option was not given."""

    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Worker processes on this host (default 2)."""
    nodes: Annotated[int | None, Whole, Parameter(name=["--nodes", "-n"], group=WHERE)] = None
    """Hosts that take part (default 1); start the command on each."""
    node_rank: Annotated[int | None, Whole, Parameter(name=["--node-rank", "-nr"], group=WHERE)] = None
    """Which of the hosts this is, from 0."""
    address: Annotated[str | None, Parameter(name=["--address", "-a"], group=WHERE)] = None
    """The host of node rank 0, as the others reach it."""
    port: Annotated[int | None, Whole, Parameter(name=["--port", "-p"], group=WHERE)] = None
    """A free port on that host (default 29500)."""
    secret_file: Annotated[Path | None, Parameter(group=WHERE)] = None
    """The run's shared secret, the same file on every host (made for you on one host)."""

    def plan(self, workers: int) -> "LaunchPlan":
        from paceline.runtimes.live.launcher.processes import LaunchPlan

        if self.secret_file is not None:
            Secret.read(self.secret_file, say_on_stderr)
        return LaunchPlan(**given_for(LaunchPlan, self) | {"workers": workers})

    def under_launcher(self, info: ProcessInfo) -> ProcessInfo:
        """Refuse what another launcher decides, or does not watch: progress and, without servers, silence."""
        decided = ["nodes", "node_rank", "address", "port", "hang_timeout"]
        decided += [] if info.servers else ["silence"]
        decided += ["workers"] if info.role == "worker" and self.workers != info.local_workers else []
        for name, value in given(self).items():
            if name in decided:
                shown = f"{value:g}" if isinstance(value, float) else value
                raise UsageError(
                    f"--{name.replace('_', '-')} {shown} has no effect under the launcher that set "
                    f"{info.known_by}={info.rank}; leave the option out, or unset {info.known_by} to start without "
                    "that launcher"
                )
        file = self.secret_file or info.secret_file
        if file is not None:
            first = info.role == "worker" and info.local_rank == 0  # one warning a host
            Secret.read(file, say_on_stderr if first else lambda _: None)
            return replace(info, secret_file=file.absolute())
        if info.nodes > 1:
            raise UsageError(f"a run on {info.nodes} hosts {NEEDED}")
        return info


@Parameter(name="*")
@dataclass(kw_only=True)
class ProcessOptions(PlaceOptions):
    """How worker processes talk to each other, and when one of them counts as lost."""

    backend: Annotated[str | None, Parameter(group=WHERE)] = None
    """Backend: shm, gloo or nccl (default shm on one host, nccl on cuda, gloo across hosts or with a schedule)."""
    threads: Annotated[int | None, Whole, Parameter(group=WHERE)] = None
    """Threads a worker computes with (default 1, or as OMP_NUM_THREADS says), however many workers there are."""
    timeout: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds that a worker waits in an exchange before it fails (default 300)."""
    hang_timeout: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds that a process may make no progress before it is ended (default 120); it is reported after about 8."""
    silence: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds without a heartbeat after which a worker (with servers) or a host counts as lost (default 20)."""


def run_workers(where: PlaceOptions, workers: int, task: WorkerTask) -> int:
    info = ProcessInfo.from_environment()
    return start_workers(where, workers) if info is None else run_as_worker(where, info, task)


def start_workers(where: PlaceOptions, workers: int) -> int:
    from paceline.cli.main import main
    from paceline.runtimes.live.launcher.launch import launch_workers
    from paceline.studies.collectives.request import check_workers

    check_workers(workers * max(where.nodes or 1, 1))
    return launch_workers(where.plan(workers), main, sys.argv[1:])


def run_as_worker(where: PlaceOptions, info: ProcessInfo, task: WorkerTask) -> int:
    from paceline.runtimes.live.worker.guard import run_guarded

    if info.launch is None:
        info = where.under_launcher(info)
    return run_guarded(info, partial(task, info))

"""``paceline bench scaling``, ``batch``, ``checkpoint`` and ``processes``: real trainings by one or more settings."""

import json
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from paceline import specs
from paceline.cli.convergence import FAILED, INTERRUPTED, StudyOptions, write_chart
from paceline.cli.importing import gc_paused, skip_compiler_import
from paceline.cli.options import (
    AGREE,
    JOB,
    LENGTH,
    RECORD,
    WHERE,
    RunOptions,
    Whole,
    given_for,
    given_options,
)
from paceline.codecs import check_codec
from paceline.commands.train import start_training
from paceline.errors import UsageError
from paceline.runtimes.settings import Cadence, Settings
from paceline.strategies import STRATEGIES

if TYPE_CHECKING:
    from paceline.jobs.job import Job
    from paceline.reports.progress import Screen
    from paceline.studies.scaling.folder import SweepFolder
    from paceline.studies.scaling.result import SweepResult
    from paceline.studies.scaling.study import Sweep, SweepKind

PARENT = Path("sweeps")
SECONDS, REPEATS = 5.0, 3
BATCHES = {"scaling": "16,64,256", "batch": "16,32,64,128,256,512", "checkpoint": "32", "processes": "32"}
LOADINGS = {"both": ("with", "without"), "with": ("with",), "without": ("without",)}
_NAMES = {"--strategies": "--strategy", "--codecs": "--codec"}

CountsText = Annotated[str | None, Parameter(group=WHERE, allow_leading_hyphen=True)]
DataLoading = Annotated[
    Literal["both", "with", "without"] | None, Parameter(name="--data-loading", group=JOB)
]


@Parameter(name="*")
@dataclass(kw_only=True)
class SweepOptions(RunOptions):
    """The options of one training, but for what a sweep varies; None means that an option was not given."""

    batch_size: Annotated[str | None, Parameter(name=["--batch-size", "-b"], group=AGREE)] = None
    """Samples of a worker's mini-batch, such as 16,64,256."""
    schedule: Annotated[str | None, Parameter(group=JOB)] = None
    """The learning-rate schedule (default held: all runs compute on the same values); see 'paceline schedules'."""
    epochs: Annotated[int | None, Whole, Parameter(group=LENGTH)] = None
    """Passes over the training data of each run, instead of --seconds."""
    iterations: Annotated[int | None, Whole, Parameter(name=["--iterations", "-i"], group=LENGTH)] = None
    """Steps of each run, instead of --seconds."""
    seconds: Annotated[float | None, Parameter(group=LENGTH)] = None
    """How long each run trains, about (default 5); more narrows the spread."""
    repeats: Annotated[int | None, Whole, Parameter(group=LENGTH)] = None
    """Runs of each cell, in turn with those of all others (default 3)."""
    target_accuracy: Annotated[float | None, Parameter(parse=False)] = None
    slow: Annotated[list[str] | None, Parameter(parse=False)] = None
    slow_turns: Annotated[int | None, Parameter(parse=False)] = None
    strategy: Annotated[str | None, Parameter(parse=False)] = None
    codec: Annotated[str | None, Parameter(parse=False)] = None
    evaluate_every: Annotated[str | None, Parameter(parse=False)] = None
    checkpoint_every: Annotated[str | None, Parameter(parse=False)] = None
    keep: Annotated[int | None, Parameter(parse=False)] = None

    def base(self) -> Settings:
        """Of every run, but for what its cell says."""
        schedule = "held" if self.job is None and self.schedule is None else self.schedule
        alone = replace(
            self, batch_size=None, evaluate_every="never", checkpoint_every="never", schedule=schedule
        )
        return alone.settings(1)

    def length(self) -> float | None:
        named = {"--epochs": self.epochs, "--iterations": self.iterations, "--seconds": self.seconds}
        asked = [option for option, value in named.items() if value is not None]
        if len(asked) > 1:
            raise UsageError(f"{asked[0]} and {asked[1]} both say how long a run is; leave one of them out")
        return (
            None if asked and asked[0] != "--seconds" else SECONDS if self.seconds is None else self.seconds
        )


@Parameter(name="*")
@dataclass(kw_only=True)
class StrategyChoice:
    """None means that an option was not given."""

    strategies: Annotated[list[str] | None, Parameter(name="--strategy", group=AGREE, negative=())] = None
    """How several workers agree (default all-reduce); may be repeated, to compare. See 'paceline strategies'."""
    codecs: Annotated[list[str] | None, Parameter(name="--codec", group=AGREE, negative=())] = None
    """What is sent in place of whole gradients (default identity); may be repeated. See 'paceline codecs'."""

    def __post_init__(self) -> None:
        for strategy in self.strategies or ():
            specs.check(strategy, STRATEGIES, "strategy")
        for codec in self.codecs or ():
            check_codec(codec)

    def axes(self) -> dict[str, Any]:
        asked = {"strategies": self.strategies, "codecs": self.codecs}
        return {name: tuple(values) for name, values in asked.items() if values}


@Parameter(name="*")
@dataclass(kw_only=True)
class SweepPlace:
    """None means that an option was not given."""

    device: Annotated[Literal["cpu", "cuda"] | None, Parameter(group=WHERE)] = None
    """What computes (default cpu)."""
    backend: Annotated[str | None, Parameter(group=WHERE)] = None
    """Backend: shm, gloo or nccl (default shm, nccl on cuda, gloo with a schedule)."""
    threads: Annotated[int | None, Whole, Parameter(group=WHERE)] = None
    """Threads a worker computes with (default 1, or as OMP_NUM_THREADS says)."""

    def machinery(self) -> dict[str, Any]:
        from paceline.runtimes.live.request import LiveOptions

        asked = given_for(LiveOptions, self)
        return {"threads": LiveOptions(**asked).threads, **asked}


@Parameter(name="*")
@dataclass(kw_only=True)
class SweepKeeping(StudyOptions):
    """What is predicted, kept and shown."""

    profile: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The machine's profile, which predictions rest on (default: the one kept for this machine)."""
    out: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The sweep's folder, new or of an earlier sweep of these settings (default: one below sweeps/)."""
    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a sweep that was interrupted: measure what is missing; it says what is measured."""
    chart: Annotated[Path | None, Parameter(group=RECORD)] = None
    """Draw the speed-up into this .svg file (default: in the sweep's folder)."""
    keep_runs: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """Keep the run folder of every repeat (default: of those that predictions rest on)."""


def scaling(
    *,
    workers: CountsText = None,
    scaling: Annotated[Literal["weak", "strong"] | None, Parameter(group=AGREE)] = None,
    data_loading: DataLoading = None,
    options: SweepOptions | None = None,
    choice: StrategyChoice | None = None,
    where: SweepPlace | None = None,
    keep: SweepKeeping | None = None,
) -> int:
    """Measure how training speeds up with workers, beside what was predicted.

    Every cell is a 'paceline train' on this machine, repeated in turn with all others: seconds an epoch, speed-up,
    efficiency, computing and communication by spans and by difference, bandwidth, CPU and memory. Each prediction is
    stored before its cell is measured. The same command again goes on with what is missing.

    Args:
        workers: How many: 1,2,4 or 1-4 (default 1,2); one worker is measured in any case, to compare with.
        scaling: weak (default): a worker keeps its batch. strong: --batch-size is divided among the workers.
        data_loading: with (default), without: every step gets the same batch again, or both.
    """
    from paceline.studies.predict.request import parse_counts

    axes: dict[str, Any] = {"workers": parse_counts(workers or "1,2"), "scaling": scaling or "weak"}
    axes |= {"loading": LOADINGS[data_loading or "with"], **(choice or StrategyChoice()).axes()}
    given = [*_given(workers=workers, scaling=scaling, data_loading=data_loading), *_given_in(choice)]
    return _sweep("scaling", axes, given, options, where, keep)


def batch(
    *,
    data_loading: DataLoading = None,
    options: SweepOptions | None = None,
    where: SweepPlace | None = None,
    keep: SweepKeeping | None = None,
) -> int:
    """Measure one worker by its batch: step, samples a second, cost of a sample, memory, where more stops paying off.

    Args:
        data_loading: with (default), without: every step gets the same batch again, or both.
    """
    axes = {"loading": LOADINGS[data_loading or "with"]}
    return _sweep("batch", axes, _given(data_loading=data_loading), options, where, keep)


def checkpoint(
    *,
    every: Annotated[
        list[str] | None, Parameter(name="--checkpoint-every", group=RECORD, negative=())
    ] = None,
    workers: Annotated[int | None, Whole, Parameter(group=WHERE)] = None,
    options: SweepOptions | None = None,
    choice: StrategyChoice | None = None,
    where: SweepPlace | None = None,
    keep: SweepKeeping | None = None,
) -> int:
    """Measure what checkpoints cost: with and without, in seconds, as a share of the time, and their size.

    Args:
        every: '1 epoch' (default) or '100 steps'; may be repeated.
        workers: How many (default 1).
    """
    cadences = [Cadence.parse(text, "checkpoint_every") for text in every or ["1 epoch"]]
    if not all(cadence.count for cadence in cadences):
        raise UsageError("--checkpoint-every never is measured in any case, to compare with; leave it out")
    axes: dict[str, Any] = {"workers": (workers or 1,), "checkpoints": (Cadence(0), *cadences)}
    axes |= (choice or StrategyChoice()).axes()
    given = [*_given(checkpoint_every=every, workers=workers), *_given_in(choice)]
    return _sweep("checkpoint", axes, given, options, where, keep)


def processes(
    *,
    processes: CountsText = None,
    options: SweepOptions | None = None,
    where: SweepPlace | None = None,
    keep: SweepKeeping | None = None,
) -> int:
    """Measure trainings side by side on this host, each of one worker: contention, and samples a second of the host.

    Args:
        processes: How many at once: 1,2,4 or 1-4 (default 1 to the number of cores, doubling); one in any case.
    """
    from paceline.records.load import usable_cores
    from paceline.studies.predict.request import parse_counts

    cores = usable_cores()
    usual = ",".join(str(2**power) for power in range(cores.bit_length()) if 2**power <= max(2, cores))
    axes = {"processes": parse_counts(processes or usual)}
    return _sweep("processes", axes, _given(processes=processes), options, where, keep)


def _given(**options: object) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]


def _given_in(choice: Any) -> list[str]:
    return [_NAMES.get(option, option) for option in given_options(choice)] if choice else []


def _sweep(
    kind: "SweepKind",
    axes: dict[str, Any],
    given: list[str],
    options: SweepOptions | None,
    where: SweepPlace | None,
    keep: SweepKeeping | None,
) -> int:
    options, where, keep = options or SweepOptions(), where or SweepPlace(), keep or SweepKeeping()
    batches = _sizes(options.batch_size or BATCHES[kind])
    with gc_paused():
        import torch

        from paceline.reports.progress import Screen
    skip_compiler_import()
    torch.set_num_threads(1)
    with closing(Screen(bar=not keep.as_json)) as screen:
        if keep.resume is not None:
            given = [*given, *given_options(options), *given_options(where), *(["--out"] if keep.out else [])]
            sweep, folder = _resumed(kind, keep.resume, given)
        else:
            options, recipe = options.with_recipe()
            if recipe:
                screen.note(recipe)
            sweep, job = _asked(kind, {**axes, "batches": batches}, options, where)
            sweep.check(job)
            from paceline.studies.scaling.folder import SweepFolder

            folder = SweepFolder.below(PARENT, f"{kind}-{job.name}", sweep)
            folder = folder if keep.out is None else SweepFolder(keep.out)
        return _run(sweep, folder, keep, screen)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(piece) for piece in text.split(",")))
    except ValueError:
        raise UsageError(f"--batch-size {text}: write whole numbers such as 16,64,256") from None


def _resumed(kind: "SweepKind", path: Path, given: list[str]) -> "tuple[Sweep, SweepFolder]":
    from paceline.studies.scaling.folder import SweepFolder

    if given:
        raise UsageError(
            f"--resume {path} says all that is measured, so {given[0]} has no place; leave one of them out"
        )
    folder = SweepFolder(path)
    sweep = folder.read(trusted=True)
    if sweep.kind != kind:
        raise UsageError(
            f"{path} is a sweep of another kind: use 'paceline bench {sweep.kind} --resume {path}'"
        )
    return sweep, folder


def _asked(
    kind: "SweepKind", axes: dict[str, Any], options: SweepOptions, where: SweepPlace
) -> "tuple[Sweep, Job]":
    from paceline.jobs.build import build_job
    from paceline.studies.scaling.study import Sweep

    settings, machinery, seconds = options.base(), where.machinery(), options.length()
    job = build_job(settings.job)
    sweep = Sweep(
        kind=kind,
        job=job.name,
        samples=job.train_samples,
        settings=settings,
        machinery=machinery,
        seconds=seconds,
        repeats=REPEATS if options.repeats is None else options.repeats,
        **axes,
    )
    return sweep, job


def _run(sweep: "Sweep", folder: "SweepFolder", keep: SweepKeeping, screen: "Screen") -> int:
    from paceline.studies.scaling.run import SweepRunner

    profile = _profile(keep.profile, sweep.machinery, screen)
    runner = SweepRunner(
        sweep,
        folder,
        partial(start_training, sweep.machinery),
        profile,
        cache(measure_link),
        screen.count_down,
        keep.keep_runs,
    )
    screen.begin()
    try:
        result = runner.run()
    except KeyboardInterrupt:
        kept = len(folder.done(sweep, sweep.runs))
        screen.close()
        screen.note(
            f"interrupted: {kept} of {len(sweep.runs)} runs are done and kept in {folder.path}; go on with "
            f"'paceline bench {sweep.kind} --resume {folder.path}'"
        )
        return INTERRUPTED
    screen.close()
    _report(result, folder, keep, screen)
    return FAILED if result.broken else 0


def _profile(given: Path | None, machinery: Mapping[str, Any], screen: "Screen") -> Path | None:
    """The machine's profile, checked; None, with a note, where there is none, or the one that is kept does not fit."""
    import torch

    from paceline.clusters.profile import MAKE, machine_profile, named_profile, read_profile
    from paceline.studies.predict.predicted_run import check_machine

    threads = machinery["threads"]
    path = machine_profile(threads) if given is None else named_profile(given, threads)
    if given is None and not path.exists():
        screen.note(
            f"no profile of this machine, so nothing is predicted: {MAKE}; then begin in a new folder"
        )
        return None
    try:
        check_machine(read_profile(path, str(torch.__version__)), machinery.get("device", "cpu"), threads)
    except UsageError as mistake:
        if given is not None:
            raise UsageError(f"{mistake}; name another profile, or leave --profile out") from mistake
        screen.note(f"nothing is predicted: {mistake}")
        return None
    return path.absolute()


def _report(result: "SweepResult", folder: "SweepFolder", keep: SweepKeeping, screen: "Screen") -> None:
    from paceline.records.files import json_text
    from paceline.reports.scaling import document, picture, text_lines

    chart, drawn = keep.chart or folder.chart, picture(result)
    if keep.as_json:
        shown = {"folder": str(folder.path), "chart": str(chart) if drawn else None}
        screen.print(json_text({**document(result), **shown}))
    else:
        where = [f"kept in {folder.path}", *([f"chart: {chart}"] if drawn else [])]
        screen.print("\n".join([*text_lines(result), "", "; ".join(where)]))
    if drawn is not None:
        write_chart(chart, drawn)
    elif keep.chart is not None:
        screen.note(f"{chart} is not written: this sweep has no speed-up that can be drawn as a line")


def measure_link(backend: str, workers: int, size: int) -> float | None:
    """Bytes a second, by 'paceline bench collectives'; None where that fails."""
    from paceline.runtimes.live.launcher.launch import paceline_command

    words = [
        "--workers",
        str(workers),
        "--sizes",
        str(size),
        "--only",
        backend,
        "--cell-seconds",
        "0.3",
        "--json",
    ]
    command = paceline_command(["bench", "collectives", *words])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(json.loads(done.stdout)["cells"][0]["busbw"]) if done.returncode == 0 else None

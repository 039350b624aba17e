"""``paceline.bench_*``: what is measured here, each by its command in a process of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from paceline.api.arguments import naming_arguments, specs_of
from paceline.api.result import StudyResult, flat
from paceline.api.settings import ComparedArguments, TrainingArguments, run_arguments
from paceline.commands.process import run_json
from paceline.specs import importable

if TYPE_CHECKING:
    from paceline.studies.collectives.request import BenchResult
    from paceline.studies.convergence.result import ConvergenceResult
    from paceline.studies.scaling.result import SweepResult

WorkerCounts = str | int | Sequence[int] | None


class SweepArguments(TrainingArguments, total=False):
    seconds: float
    """How long each run trains, about (5)."""
    repeats: int
    """Runs of each cell (3)."""
    device: Literal["cpu", "cuda"]
    threads: int
    """Threads a worker computes with."""
    profile: str | Path
    """The machine's profile, which predictions rest on."""
    out: str | Path
    """The sweep's folder."""
    resume: str | Path
    """The folder of a sweep that was interrupted."""
    keep_runs: bool
    """Keep the run folder of every repeat."""


class SharedSweepArguments(SweepArguments, ComparedArguments, total=False):
    """Of a sweep in which several workers train one model."""

    backend: str
    """"shm", "gloo" or "nccl"."""


@naming_arguments
def bench_collectives(
    *,
    workers: int | None = None,
    sizes: str | None = None,
    only: str | Sequence[str] | None = None,
    op: str | None = None,
    dtype: str | None = None,
    repeats: int | None = None,
    cell_seconds: float | None = None,
    show: bool = False,
) -> "StudyResult[BenchResult]":
    """Measure all-reduces by every backend and schedule on this machine, as ``paceline bench collectives`` does.

    Args:
        workers: Worker processes (2).
        sizes: Such as "1kB,1MB,25MiB", up to 4 GB.
        only: Backends and schedules, such as ["ring", "shm"].
        op: "sum", "mean", "max", "min" or "product"; "and", "or" and "xor" for integers.
        dtype: "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32" or "int64".
        repeats: Timed calls per cell.
        cell_seconds: Seconds for the timed calls of a cell (0.6).
        show: Print progress while it goes on.

    Returns:
        A row a size and backend; a wrong result is in its row, under "right".
    """
    given = {name: value for name, value in locals().items() if value is not None and name != "show"}
    from paceline.records.files import from_document
    from paceline.reports.bench import conclusion, header, row, winners
    from paceline.studies.collectives.request import BenchResult

    if not isinstance(only, str | None):
        given["only"] = ",".join(only)
    document = run_json(["bench", "collectives"], given, show=show)
    kept = {name: value for name, value in document.items() if name not in ("schema", "fastest")}
    found = from_document(kept, BenchResult)

    def text() -> str:
        fastest = [str(one) for one in winners(found.cells) if one.compared]
        lines = [*header(found.settings), "", *map(row, found.cells), "", *fastest]
        return "\n".join([*lines, conclusion(found.cells, found.ending)])

    rows = [flat(cell) for cell in document["cells"]]
    return StudyResult(value=found, rows=rows, document=lambda: document, text=text)


@naming_arguments
def bench_convergence(
    *,
    seeds: int | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    times: str | Path | None = None,
    processes: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    chart: str | Path | None = None,
    show: bool = False,
    **settings: Unpack[ComparedArguments],
) -> "StudyResult[ConvergenceResult]":
    """Compare strategies and codecs by what they need to learn, as ``paceline bench convergence`` does.

    Args:
        seeds: Runs of each pair (3).
        cluster: As for ``simulate``, and so are ``workers`` (8) and ``times``.
        workers: Without a cluster: hosts with one worker each.
        times: A run folder whose typical step is taken.
        processes: Runs that are simulated at the same time.
        out: The study's folder.
        resume: The folder of a study that was interrupted.
        chart: The .svg file that is drawn.
        show: Print progress while it goes on.
        **settings: As for ``simulate``, but ``strategy`` and ``codec`` may be lists of names or objects: every strategy
            with every codec, all compared with the first.

    Returns:
        A row a pair; ``value`` is the ``ConvergenceResult``.
    """
    given = _study_arguments(locals())
    from paceline.reports.convergence import text_lines
    from paceline.studies.convergence.folder import read_convergence

    document = run_json(["bench", "convergence"], given, show=show)
    found = read_convergence(Path(document["folder"]), given.get("target_accuracy"))
    return StudyResult(
        value=found,
        rows=[flat(row) for row in document["rows"]],
        document=lambda: document,
        text=lambda: "\n".join(text_lines(found)),
    )


@naming_arguments
def bench_scaling(
    *,
    workers: WorkerCounts = None,
    scaling: Literal["weak", "strong"] | None = None,
    data_loading: Literal["both", "with", "without"] | None = None,
    show: bool = False,
    **settings: Unpack[SharedSweepArguments],
) -> "StudyResult[SweepResult]":
    """Measure how training speeds up with workers, beside what was predicted, as ``paceline bench scaling`` does.

    Args:
        workers: How many: [1, 2, 4] or "1-4" (1 and 2).
        scaling: "weak" or "strong".
        data_loading: "with", "without" or "both".
        show: Print progress while it goes on.
        **settings: How it is measured: ``seconds`` that each run trains, about (5), ``repeats`` of each cell (3),
            ``device``, ``backend``, ``threads``, ``profile`` (the machine's, which predictions rest on), ``out`` (the
            sweep's folder), ``resume`` (that of one that was interrupted), ``keep_runs``; and what is trained, as for
            ``train``, where ``batch_size``, ``strategy`` and ``codec`` may be lists.

    Returns:
        A row a cell; ``value`` is the ``SweepResult``.
    """
    return _sweep("scaling", locals())


@naming_arguments
def bench_batch(
    *,
    data_loading: Literal["both", "with", "without"] | None = None,
    show: bool = False,
    **settings: Unpack[SweepArguments],
) -> "StudyResult[SweepResult]":
    """Measure one worker by its batch, as ``paceline bench batch`` does; arguments are as for ``bench_scaling``."""
    return _sweep("batch", locals())


@naming_arguments
def bench_checkpoint(
    *, workers: int | None = None, show: bool = False, **settings: Unpack[SharedSweepArguments]
) -> "StudyResult[SweepResult]":
    """Measure what checkpoints cost, as ``paceline bench checkpoint`` does: ``checkpoint_every`` against none."""
    return _sweep("checkpoint", locals())


@naming_arguments
def bench_processes(
    *, processes: WorkerCounts = None, show: bool = False, **settings: Unpack[SweepArguments]
) -> "StudyResult[SweepResult]":
    """Measure trainings side by side on this host, as ``paceline bench processes`` does."""
    return _sweep("processes", locals())


@naming_arguments
def load_sweep(path: str | Path) -> "StudyResult[SweepResult]":
    """Read the folder of a ``bench_scaling``, ``bench_batch``, ``bench_checkpoint`` or ``bench_processes``."""
    from paceline.reports.scaling import document as document_of
    from paceline.reports.scaling import text_lines
    from paceline.studies.scaling.result import read_sweep

    found = read_sweep(Path(path))
    return StudyResult(
        value=found,
        rows=[flat(row, bare=("cell",)) for row in document_of(found)["rows"]],
        document=lambda: {**document_of(found), "folder": str(path)},
        text=lambda: "\n".join(text_lines(found)),
    )


def _sweep(kind: str, arguments: dict[str, Any]) -> "StudyResult[SweepResult]":
    show = arguments["show"]
    document = run_json(["bench", kind], _study_arguments(arguments), show=show)
    return load_sweep(document["folder"])


def _study_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as options: objects by their import paths."""
    given = {name: value for name, value in arguments.items() if value is not None}
    given.pop("show")
    settings = given.pop("settings")
    several = {name: settings.pop(name) for name in ("strategy", "codec") if settings.get(name) is not None}
    given |= run_arguments(settings)
    for kind, specs in several.items():
        given[kind] = [importable(one, kind) for one in specs_of(specs, kind)]
    for kind in ("job", "data", "model", "optimizer", "schedule"):
        if kind in given:
            given[kind] = importable(given[kind], kind)
    for name in ("workers", "processes"):
        if isinstance(given.get(name), Sequence) and not isinstance(given[name], str):
            given[name] = ",".join(map(str, given[name]))
    return given

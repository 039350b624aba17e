"""``paceline bench convergence``: which strategy has learned first, in simulated time, bytes and samples."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline import specs
from paceline.cli.importing import gc_paused, skip_compiler_import
from paceline.cli.options import AGREE, LENGTH, RECORD, WHERE, Accuracy, RunOptions, Whole, given_options
from paceline.cli.simulate import MISSED, ClusterOptions
from paceline.codecs import check_codec
from paceline.errors import UsageError
from paceline.strategies import STRATEGIES

if TYPE_CHECKING:
    from paceline.reports.progress import Screen
    from paceline.studies.convergence.folder import StudyFolder
    from paceline.studies.convergence.result import ConvergenceResult
    from paceline.studies.convergence.study import ConvergenceStudy, Selection

WORKERS, SEEDS, MOST_SEEDS = 8, 3, 1000
FAILED, INTERRUPTED = 1, 130
PARENT = Path("convergence")
_NAMES = {"--strategies": "--strategy", "--codecs": "--codec"}


@Parameter(name="*")
@dataclass(kw_only=True)
class GridChoice:
    """What a study compares; None means that an option was not given."""

    strategies: Annotated[list[str] | None, Parameter(name="--strategy", group=AGREE, negative=())] = None
    """May be repeated; all are compared with the first (default: five that ship); see 'paceline strategies'."""
    codecs: Annotated[list[str] | None, Parameter(name="--codec", group=AGREE, negative=())] = None
    """May be repeated: every strategy with every codec (default identity); see 'paceline codecs'."""
    seeds: Annotated[int | None, Whole, Parameter(group=LENGTH)] = None
    """Runs of each pair, with seeds from 1 (default 3)."""


@Parameter(name="*")
@dataclass(kw_only=True)
class GridOptions(RunOptions, GridChoice):
    """The options of one run, but for what a study varies; None means that an option was not given."""

    target_accuracy: Annotated[float | None, Accuracy, Parameter(group=LENGTH)] = None
    """Compare when this is reached, such as 0.97 (default: a point below what the first comes to)."""
    evaluate_every: Annotated[str | None, Parameter(group=RECORD)] = None
    """'1 epoch' or '500 steps' (default: 20 times a run, at least once an epoch); its time and bytes do not count."""
    strategy: Annotated[str | None, Parameter(parse=False)] = None
    codec: Annotated[str | None, Parameter(parse=False)] = None
    seed: Annotated[int | None, Parameter(parse=False)] = None
    checkpoint_every: Annotated[str | None, Parameter(parse=False)] = "never"
    keep: Annotated[int | None, Parameter(parse=False)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for strategy in self.strategies or ():
            specs.check(strategy, STRATEGIES, "strategy")
        for codec in self.codecs or ():
            check_codec(codec)
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise UsageError(
                f"--target-accuracy {self.target_accuracy:g} must lie between 0 and 1, such as 0.97"
            )
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"--seeds {self.seeds} is out of range: 1 to {MOST_SEEDS:,}")

    def given(self) -> list[str]:
        """What a study that is resumed has settled, by the names of the options."""
        settled = replace(self, target_accuracy=None, checkpoint_every=None)
        return [_NAMES.get(option, option) for option in given_options(settled)]


@Parameter(name="*")
@dataclass(kw_only=True)
class GridClusterOptions(ClusterOptions):
    """None means that an option was not given."""

    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Without --cluster: this many hosts with one worker each (default 8)."""
    gradients: Annotated[bool, Parameter(parse=False)] = True
    horizon: Annotated[str | None, Parameter(parse=False)] = None
    processes: Annotated[int | None, Whole, Parameter(group=WHERE)] = None
    """Runs that are simulated at the same time, one thread each (default: the cores of this machine)."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise UsageError(f"--processes {self.processes} is too small: at least 1 run must go on")


@Parameter(name="*")
@dataclass(kw_only=True)
class StudyOptions:
    """What is kept and shown."""

    out: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The study's folder, new or of an earlier study of these settings (default: one below convergence/)."""
    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a study that was interrupted: run what is missing; it says all but the target."""
    chart: Annotated[Path | None, Parameter(group=RECORD)] = None
    """Draw accuracy against time, bytes and samples into this .svg file (default: in the study's folder)."""
    as_json: Annotated[bool, Parameter(name="--json", group=RECORD, negative=(), show_default=False)] = False
    """One JSON document on stdout instead of text."""

    def __post_init__(self) -> None:
        if self.chart is not None and self.chart.suffix != ".svg":
            raise UsageError(f"--chart {self.chart}: name a file that ends in .svg")
        if self.chart is not None and not self.chart.parent.is_dir():
            raise UsageError(
                f"--chart {self.chart}: there is no folder {self.chart.parent}; make it, or name another file"
            )


def convergence(
    *,
    options: GridOptions | None = None,
    where: GridClusterOptions | None = None,
    keep: StudyOptions | None = None,
) -> int:
    """Compare strategies and codecs by what they need to learn: simulated time, bytes, samples.

    Every run is a 'paceline simulate' with true gradients, in a process of its own. What is done is kept in the
    study's folder, and the same command again runs only what is missing. Pairs that do not go together are left
    out with a note. Exit code 3 where no pair reaches --target-accuracy.
    """
    options, where, keep = options or GridOptions(), where or GridClusterOptions(), keep or StudyOptions()
    with gc_paused():
        import torch

        from paceline.reports.progress import Screen
    skip_compiler_import()
    torch.set_num_threads(1)
    with closing(Screen(bar=not keep.as_json)) as screen:
        study, selection, folder = _study(options, where, keep, screen)
        return _run(study, selection, folder, options, where, keep, screen)


def _study(
    options: GridOptions, where: GridClusterOptions, keep: StudyOptions, screen: "Screen"
) -> "tuple[ConvergenceStudy, Selection, StudyFolder]":
    """What is to be run, and where it is kept; notes go to the screen."""
    from paceline.studies.convergence.folder import StudyFolder
    from paceline.studies.convergence.study import select, with_evaluations

    if keep.resume is not None:
        given = [*options.given(), *where.given(), *(["--out"] if keep.out else [])]
        if given:
            raise UsageError(
                f"--resume {keep.resume} says all that is run, so {given[0]} has no place; leave one of them out"
            )
        folder = StudyFolder(keep.resume)
        study = folder.read(trusted=True)
        selection = select(study)
    else:
        options, recipe = options.with_recipe()
        if recipe:
            screen.note(recipe)
        study = _asked(options, where)
        selection = select(study)
        if options.evaluate_every is None:
            study = with_evaluations(study, selection.job)
        folder = StudyFolder.below(PARENT, selection.job.name, study)
        if keep.out is not None:
            folder = StudyFolder(keep.out)
        if where.request().assumption:
            screen.note(where.request().assumption)
    for sentence in selection.left_out:
        screen.note(sentence)
    return study, selection, folder


def _asked(options: GridOptions, where: GridClusterOptions) -> "ConvergenceStudy":
    from paceline.studies.convergence.study import ConvergenceStudy

    cluster = where.request().read(WORKERS)
    settings = replace(options, target_accuracy=None).settings(cluster.workers)
    timed, sizes = where.request().timed(cluster, settings)
    asked = {"strategies": options.strategies, "codecs": options.codecs}
    chosen = {name: tuple(values) for name, values in asked.items() if values}
    seeds = tuple(range(1, (options.seeds or SEEDS) + 1))
    return ConvergenceStudy(settings=settings, cluster=timed, sizes=sizes, seeds=seeds, **chosen)


def _run(
    study: "ConvergenceStudy",
    selection: "Selection",
    folder: "StudyFolder",
    options: GridOptions,
    where: GridClusterOptions,
    keep: StudyOptions,
    screen: "Screen",
) -> int:
    from paceline.studies.convergence.run import run_study

    screen.begin()
    try:
        result = run_study(
            study,
            selection,
            folder,
            target=options.target_accuracy,
            processes=where.processes,
            show=screen.count_down,
        )
    except KeyboardInterrupt:
        cells = selection.cells(study.seeds)
        kept = len(folder.done(study, cells))
        screen.close()
        screen.note(
            f"interrupted: {kept} of {len(cells)} runs are done and kept in {folder.path}; go on with "
            f"'paceline bench convergence --resume {folder.path}'"
        )
        return INTERRUPTED
    screen.close()
    _report(result, folder, keep, screen)
    if result.broken:
        return FAILED
    return MISSED if result.chosen and not any(row.on_target for row in result.rows) else 0


def _report(result: "ConvergenceResult", folder: "StudyFolder", keep: StudyOptions, screen: "Screen") -> None:
    from paceline.records.files import json_text
    from paceline.reports.convergence import document, picture, text_lines
    from paceline.reports.text import can_draw

    chart = keep.chart or folder.chart
    if keep.as_json:
        screen.print(json_text({**document(result), "folder": str(folder.path), "chart": str(chart)}))
    else:
        lines = text_lines(result, can_draw(screen.out))
        screen.print("\n".join([*lines, "", f"chart: {chart}"]))
    write_chart(chart, picture(result))


def write_chart(path: Path, drawn: str) -> None:
    """After the results are printed: what took long to measure is shown, whatever becomes of the file."""
    try:
        path.write_text(drawn)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error

"""``paceline plan``: what to train on, and how, for a deadline or a budget."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from paceline import specs
from paceline.cli.importing import gc_paused
from paceline.cli.options import AGREE, JOB, LENGTH, WHERE, given, whole
from paceline.cli.plan_commands import commands
from paceline.cli.predict import AgreeCount, JobText, Shown, ShownPath, with_job, write_text
from paceline.codecs import check_codec
from paceline.errors import UsageError
from paceline.strategies import STRATEGIES
from paceline.units import parse_seconds

if TYPE_CHECKING:
    from paceline.studies.plan import PlanRequest, TrainingPlan
    from paceline.studies.plan.factors import SampleFactors

MISSED = 3
"""The exit code where nothing meets the deadline or the budget."""
AIM = Group("By when, and for how much", sort_key=0)

LengthCount = Annotated[int | None, Parameter(group=LENGTH, converter=whole)]
Specs = Annotated[list[str] | None, Parameter(group=AGREE, negative=())]


@Parameter(name="*")
@dataclass(kw_only=True)
class PlanOptions:
    """None means that an option was not given."""

    deadline: Annotated[str | None, Parameter(group=AIM)] = None
    """How long training may take, such as 6h or '90 min'."""
    budget: Annotated[float | None, Parameter(group=AIM)] = None
    """What it may cost, in the currency of the prices."""

    input: JobText = None
    """The shape of one sample, such as 3x224x224 (default: the model's usual one)."""
    classes: Annotated[int | None, Parameter(group=JOB, converter=whole)] = None
    """Number of classes (default: the model's usual number)."""
    optimizer: JobText = None
    """The optimizer (default sgd); see 'paceline optimizers'."""
    job: JobText = None
    """Your own job by import path, such as my_module:build, instead of a model."""
    data: JobText = None
    """With --model instead of a model: a job by its parts, as for 'paceline train'."""
    data_dir: JobText = None
    """The folder that holds the data's files."""
    model: JobText = None
    """The model of such a job."""
    precision: Annotated[Literal["bf16"] | None, Parameter(group=JOB)] = None
    """Precision of forward and loss: bf16 by torch.autocast (default: as PyTorch computes)."""

    epochs: LengthCount = None
    """Passes over the training data."""
    samples: LengthCount = None
    """Samples of an epoch, where the job does not say; without --epochs, of the whole training."""

    hardware: Annotated[list[str] | None, Parameter(group=WHERE, negative=())] = None
    """What can be had, such as a100:price=2.5,network=25gbit,per-host=8,most=32; may be repeated."""
    offers: Annotated[Path | None, Parameter(group=WHERE)] = None
    """A .toml file with a [[hardware]] table for each, instead or besides."""

    workers: Annotated[str | None, Parameter(name=["--workers", "-np"], group=AGREE)] = None
    """Numbers of workers to consider, 1,2,4 or 1-8 (default: powers of two up to what can be had)."""
    batch_size: Annotated[str | None, Parameter(name=["--batch-size", "-b"], group=AGREE)] = None
    """Samples per worker and step to consider (default 32,64,128,256)."""
    largest_batch: AgreeCount = None
    """The largest batch of all workers together that is considered (default: any)."""
    reference_batch: Annotated[float | None, Parameter(group=AGREE)] = None
    """The global batch that the job is known to learn with (default: the smallest --batch-size)."""
    strategies: Annotated[Specs, Parameter(name=["--strategies", "--strategy"])] = None
    """May be repeated (default all-reduce, local-sgd:period=8 and ps); see 'paceline strategies'."""
    codecs: Annotated[Specs, Parameter(name=["--codecs", "--codec"])] = None
    """May be repeated (default identity, int8 and powersgd); see 'paceline codecs'."""
    servers: AgreeCount = None
    """Servers of strategies that have them (default: one a host, up to 4)."""
    convergence: Annotated[Path | None, Parameter(group=AGREE)] = None
    """The folder of a 'paceline bench convergence': multiplies samples by what it measured."""
    target_accuracy: Annotated[float | None, Parameter(group=AGREE)] = None
    """With --convergence: the accuracy whose samples count (default: as the study chooses)."""

    def __post_init__(self) -> None:
        for strategy in self.strategies or ():
            specs.check(strategy, STRATEGIES, "strategy")
        for codec in self.codecs or ():
            check_codec(codec)
        if self.target_accuracy is not None:
            if self.convergence is None:
                raise UsageError("--target-accuracy is that of a study: give --convergence, or leave it out")
            if not 0 < self.target_accuracy <= 1:
                raise UsageError(f"--target-accuracy {self.target_accuracy:g} must lie between 0 and 1")

    def request(self, name: str | None) -> "PlanRequest":
        from paceline.studies.plan import PlanRequest, parse_offer, read_offers
        from paceline.studies.predict.request import parse_counts

        settings: dict[str, Any] = with_job(given(self))
        if name is None and "job" not in settings:
            raise UsageError("which model? name one, such as resnet50 (see 'paceline models'), or give a job")
        if name is not None and "job" in settings:
            raise UsageError(f"model {name} and a job both say what is trained; leave one of them out")
        for option in ("hardware", "convergence", "target_accuracy"):
            settings.pop(option, None)
        settings["offers"] = tuple(map(parse_offer, self.hardware or ()))
        if self.offers is not None:
            settings["offers"] += read_offers(self.offers)
        if self.deadline is not None:
            settings["deadline"] = _seconds(self.deadline)
        if self.workers is not None:
            settings["workers"] = parse_counts(self.workers)
        if self.batch_size is not None:
            settings["batch_sizes"] = _batches(settings.pop("batch_size"))
        for option in ("strategies", "codecs"):
            if option in settings:
                settings[option] = tuple(settings[option])
        return PlanRequest(model=name, **settings)

    def factors(self) -> "SampleFactors":
        from paceline.studies.plan.factors import SampleFactors

        if self.convergence is None:
            return SampleFactors()
        return SampleFactors.read(self.convergence, self.target_accuracy)


def plan(
    name: str | None = None,
    /,
    *,
    options: PlanOptions | None = None,
    chart: ShownPath = None,
    out: ShownPath = None,
    as_json: Annotated[Shown, Parameter(name="--json")] = False,
) -> int:
    """Find what to train on, and how, for a deadline or a budget.

    Every strategy, codec, number of workers and batch size is predicted on all hardware that can be had. Under a
    deadline the cheapest comes first, under a budget the fastest; without either, the table is the Pareto front of
    time and cost. Then the command that trains so. Exit code 3 where nothing meets the deadline and the budget.

    Args:
        name: The model: one that ships, such as resnet50 ('paceline models'), or your own by import path.
        chart: Draw time against cost into this .svg file.
        out: Write the whole plan to this JSON file.
        as_json: One JSON document instead of text.
    """
    options = options or PlanOptions()
    if chart is not None and chart.suffix != ".svg":
        raise UsageError(f"--chart {chart}: name a file that ends in .svg")
    with gc_paused():
        from paceline.studies.plan import make_plan
    from paceline.records.files import json_text, to_document
    from paceline.reports.plan_chart import picture
    from paceline.reports.predict.text import ProgressLine

    request = options.request(name)
    progress = ProgressLine(sys.stderr)
    found = make_plan(request, options.factors(), progress=progress)
    progress.done()
    document = json_text({**to_document(found), "commands": commands(found, request)})
    if out is not None:
        write_text(out, document + "\n")
    if chart is not None:
        write_text(chart, picture(found))
    print(document if as_json else _text(found, request))  # noqa: T201
    return 0 if found.met else MISSED


def _text(found: "TrainingPlan", request: "PlanRequest") -> str:
    from paceline.reports.plan import text_lines
    from paceline.reports.plan_chart import chart_lines
    from paceline.reports.text import can_draw

    lines = text_lines(found, chart_lines(found, unicode=can_draw(sys.stdout)))
    for said, command in commands(found, request).items():
        lines += ["", f"{said}:", f"  {command}"]
    return "\n".join(lines)


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except UsageError as mistake:
        raise UsageError(f"--deadline: {mistake}") from mistake


def _batches(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(int(piece) for piece in text.split(",")))
    except ValueError:
        raise UsageError(f"--batch-size {text}: write whole numbers, such as 32,64,128") from None

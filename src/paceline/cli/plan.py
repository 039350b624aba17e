"""``paceline plan``: what to train on, and how, for a deadline or a budget."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.cli.importing import gc_paused
from paceline.cli.options import AGREE, JOB, LENGTH, WHERE, Accuracy, given, whole
from paceline.cli.predict import AgreeCount, JobText, Shown, ShownPath, write_text
from paceline.errors import UsageError

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
    strategy: Specs = None
    """May be repeated (default all-reduce, local-sgd:period=8 and ps); see 'paceline strategies'."""
    codec: Specs = None
    """May be repeated (default identity, int8 and powersgd); see 'paceline codecs'."""
    servers: AgreeCount = None
    """Servers of strategies that have them (default: one a host, up to 4)."""
    convergence: Annotated[Path | None, Parameter(group=AGREE)] = None
    """The folder of a 'paceline bench convergence': multiplies samples by what it measured."""
    target_accuracy: Annotated[float | None, Accuracy, Parameter(group=AGREE)] = None
    """With --convergence: the accuracy whose samples count (default: as the study chooses)."""


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
        import paceline.studies.plan  # noqa: F401  which is most of what takes time
    from paceline.api.plan import plan as make_plan
    from paceline.reports.plan_chart import picture
    from paceline.reports.predict.text import ProgressLine

    progress = ProgressLine(sys.stderr)
    found = make_plan(name, **given(options), progress=progress)
    progress.done()
    if out is not None:
        write_text(out, found.to_json() + "\n")
    if chart is not None:
        write_text(chart, picture(found.value))
    print(found.to_json() if as_json else found)  # noqa: T201
    return 0 if found.value.met else MISSED

"""``paceline predict``: how fast a training will be, on hardware that you do not have."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.cli.importing import gc_paused
from paceline.cli.options import AGREE, JOB, WHERE, given, whole
from paceline.errors import UsageError

MONEY = Group("What it costs", sort_key=5)
SHOWN = Group("What is shown", sort_key=6)

JobText = Annotated[str | None, Parameter(group=JOB)]
WhereText = Annotated[str | None, Parameter(group=WHERE)]
WhereCount = Annotated[int | None, Parameter(group=WHERE, converter=whole)]
WherePath = Annotated[Path | None, Parameter(group=WHERE)]
WhereNumber = Annotated[float | None, Parameter(group=WHERE)]
AgreeText = Annotated[str | None, Parameter(group=AGREE)]
AgreeCount = Annotated[int | None, Parameter(group=AGREE, converter=whole)]
MoneyNumber = Annotated[float | None, Parameter(group=MONEY)]
MoneyCount = Annotated[int | None, Parameter(group=MONEY, converter=whole)]
Shown = Annotated[bool, Parameter(group=SHOWN, negative=(), show_default=False)]
ShownPath = Annotated[Path | None, Parameter(group=SHOWN)]


@Parameter(name="*")
@dataclass(kw_only=True)
class PredictOptions:
    """None means that an option was not given."""

    input: JobText = None
    """The shape of one sample, such as 3x224x224 (default: the model's usual one)."""
    classes: Annotated[int | None, Parameter(group=JOB, converter=whole)] = None
    """Number of classes (default: the model's usual number)."""
    optimizer: JobText = None
    """The optimizer (default sgd), such as adam; see 'paceline optimizers'."""
    job: JobText = None
    """Your own job by import path, such as my_module:build, instead of a model."""
    data: JobText = None
    """With --model instead of a model: a job by its parts, as for 'paceline train'."""
    model: JobText = None
    """The model of such a job."""

    device: WhereText = None
    """What each worker computes on, by name, such as a100; see 'paceline devices'."""
    precision: WhereText = None
    """How that device computes: torch (default, as PyTorch: FP32, TF32 in convolutions), fp32, tf32, fp16 or bf16."""
    threads: WhereCount = None
    """Cores of a CPU that a worker uses (default: all of them)."""
    memory: WhereText = None
    """Memory of that device, or of a host that workers share, such as '24 GiB' (default: as listed or measured)."""
    profile: WherePath = None
    """Instead of a device: a file that 'paceline calibrate' wrote, or 'machine' for the profile of this machine."""
    times: WherePath = None
    """Instead of a device: the run folder of one worker, or latest; a step takes as long as its typical step there."""
    network: Annotated[str | None, Parameter(group=WHERE, allow_leading_hyphen=True)] = None
    """Between hosts: 25gbit, '30 Gbit/s,10 us' (default 10gbit, or as a profile has it); see 'paceline networks'."""
    per_host: WhereCount = None
    """Workers per host (default 1)."""
    inside: WhereText = None
    """Between workers of a host, such as nvlink3 (default: shared memory of a small machine, 4 GB/s)."""
    cluster: WhereText = None
    """A .toml file or an inline description instead, as for 'paceline simulate'; its first workers are used."""
    backend: Annotated[Literal["shm", "gloo"] | None, Parameter(group=WHERE)] = None
    """On a measured machine: shm, as for 'paceline train' (default), or gloo over the loopback."""
    cost_model: Annotated[Literal["paceline", "paleo"] | None, Parameter(group=WHERE)] = None
    """paceline (default), or paleo: Paleo's own model (Qi et al., 2017), with its own table."""
    ppp_comp: WhereNumber = None
    """Paleo's model: the fraction of the device's peak that is reached, such as 0.62 (default 1)."""
    ppp_comm: WhereNumber = None
    """Paleo's model: the fraction of the network's bandwidth that is reached (default 1)."""

    workers: Annotated[
        str | None, Parameter(name=["--workers", "-np"], group=AGREE, allow_leading_hyphen=True)
    ] = None
    """How many: 1,2,4,8 or 1-8 (default 1,2,4,8,16,32,64,128)."""
    batch_size: Annotated[AgreeCount, Parameter(name=["--batch-size", "-b"])] = None
    """Samples per worker and step (default 32, or those of --times); with --scaling strong, of all workers together."""
    accumulate: AgreeCount = None
    """Mini-batches per step, whose gradients are added up (default 1, or as the job says)."""
    scaling: Annotated[Literal["weak", "strong"] | None, Parameter(group=AGREE)] = None
    """weak (default): a worker keeps its batch. strong: the batch is divided among the workers."""
    strategy: Annotated[list[str] | None, Parameter(group=AGREE, negative=())] = None
    """How workers agree (default all-reduce); may be repeated, to compare. See 'paceline strategies'."""
    collective: AgreeText = None
    """How all-reduces are done: native (default) or a schedule's name, see 'paceline explain'."""
    codec: Annotated[list[str] | None, Parameter(group=AGREE, negative=())] = None
    """What is sent in place of whole gradients (default identity); repeat it to compare. See 'paceline codecs'."""
    servers: AgreeCount = None
    """Servers that keep the parameters, 1 to 64 (default 1); for ps, ssp and async."""
    jitter: Annotated[float | None, Parameter(group=AGREE)] = None
    """Spread of compute times: 0.05 varies a typical step by a twentieth (default 0)."""

    price: MoneyNumber = None
    """Price per worker and hour."""
    host_price: MoneyNumber = None
    """Price per host and hour, instead."""
    epochs: MoneyCount = None
    """Passes over the training data: adds the time of the whole training."""
    samples: MoneyCount = None
    """Samples per epoch, where the job does not say."""


def predict(
    name: str | None = None,
    /,
    *,
    options: PredictOptions | None = None,
    layers: Shown = False,
    chart: Shown = False,
    svg: ShownPath = None,
    out: ShownPath = None,
    as_json: Annotated[Shown, Parameter(name="--json")] = False,
) -> int:
    """Predict how fast a training will be, on hardware that you do not have.

    The model is traced without weights and without a GPU; a device turns its operators into time; the strategy's
    program runs on the described network. The answer first: faster or
    slower than one worker, by how much and why; then rows by number of workers, and what would help.

    Args:
        name: The model: one that ships, such as resnet50 ('paceline models'), or your own by import path.
        layers: Show where a worker's step goes, module by module.
        chart: Draw the speed-up by workers below the table.
        svg: Draw it into this .svg file, with its interval.
        out: Write the whole prediction to this file, for a later comparison with what was measured.
        as_json: One JSON document instead of text.
    """
    options = options or PredictOptions()
    if svg is not None and svg.suffix != ".svg":
        raise UsageError(f"--svg {svg}: name a file that ends in .svg")
    if options.cost_model == "paleo" and (chart or svg):
        raise UsageError(
            f"{'--chart' if chart else '--svg'} does not go with --cost-model paleo; leave it out"
        )
    with gc_paused():
        import paceline.studies.predict  # noqa: F401  which is most of what takes time
    from paceline.api.predict import predict as predict_model
    from paceline.reports.predict.chart import chart_lines, picture
    from paceline.reports.predict.text import ProgressLine
    from paceline.reports.text import can_draw

    progress = ProgressLine(sys.stderr)
    found = predict_model(name, **given(options), layers=layers, progress=progress)
    progress.done()
    if out is not None:
        write_text(out, found.to_json() + "\n")
    if svg is not None:
        write_text(svg, picture(found.value))
    lines = [found.to_json() if as_json else str(found)]
    if chart and not as_json:
        lines += ["", *chart_lines(found.value, unicode=can_draw(sys.stdout))]
    print("\n".join(lines))  # noqa: T201
    return 0


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error
    sys.stderr.write(f"wrote {path}\n")

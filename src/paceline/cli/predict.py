"""``paceline predict``: how fast a training will be, on hardware that is not there yet."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from paceline.cli.importing import without_collecting
from paceline.cli.options import AGREE, JOB, WHERE, whole
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec

if TYPE_CHECKING:
    from paceline.studies.predict import Prediction, PredictRequest

MONEY = Group("What it costs", sort_key=5)
SHOWN = Group("What is shown", sort_key=6)

Whole = Parameter(converter=whole)

SIZE_DIGITS = 9
"""Of a size of a sample; more do not fit any memory."""


@Parameter(name="*")
@dataclass(kw_only=True)
class SubjectOptions:
    """None means that an option was not given."""

    input: Annotated[str | None, Parameter(group=JOB)] = None
    """The shape of one sample, such as 3x224x224 (default: the model's usual one)."""
    classes: Annotated[int | None, Whole, Parameter(group=JOB)] = None
    """What a target is one of (default: the model's usual number)."""
    optimizer: Annotated[str | None, Parameter(group=JOB)] = None
    """The optimizer (default sgd), such as adam; see 'paceline optimizers'."""
    job: Annotated[str | None, Parameter(group=JOB)] = None
    """Your own job by import path, such as my_module:build, instead of a model."""
    data: Annotated[str | None, Parameter(group=JOB)] = None
    """With --model instead of a model: a job by its parts, as 'paceline train' has them."""
    model: Annotated[str | None, Parameter(group=JOB)] = None
    """The model of such a job."""

    def spec(self) -> JobSpec | None:
        """The job, where the options name one."""
        if self.job is not None:
            for option, value in (
                ("--data", self.data),
                ("--model", self.model),
                ("--optimizer", self.optimizer),
            ):
                if value is not None:
                    raise UsageError(
                        f"--job {self.job} brings its own parts, so {option} has no place; leave one of them out"
                    )
            return JobSpec(path=self.job)
        if self.data is None and self.model is None:
            return None
        usual = JobSpec()
        return JobSpec(
            data=self.data or usual.data,
            model=self.model or usual.model,
            optimizer=self.optimizer or usual.optimizer,
        )

    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample."""
        if self.input is None:
            return None
        pieces = self.input.lower().split("x")
        if long := [piece for piece in pieces if piece.isdecimal() and len(piece.lstrip("0")) > SIZE_DIGITS]:
            raise UsageError(
                f"--input {self.input}: a size of {len(long[0])} digits is too large; write sizes such as 3x224x224"
            )
        if not all(piece.isdecimal() and int(piece) > 0 for piece in pieces):
            raise UsageError(f"--input {self.input} is not a shape: write sizes such as 3x224x224")
        return tuple(int(piece) for piece in pieces)


@Parameter(name="*")
@dataclass(kw_only=True)
class ComputeOptions:
    """None means that an option was not given."""

    device: Annotated[str | None, Parameter(group=WHERE)] = None
    """What each worker computes on, by name, such as a100; see 'paceline devices'."""
    precision: Annotated[str | None, Parameter(group=WHERE)] = None
    """How that device computes: torch (default, as PyTorch: FP32, TF32 in convolutions), fp32, tf32, fp16 or bf16."""
    threads: Annotated[int | None, Whole, Parameter(group=WHERE)] = None
    """Cores of a CPU that a worker uses (default: all of them)."""
    memory: Annotated[str | None, Parameter(group=WHERE)] = None
    """Memory of that device, or of a host whose CPU its workers share, such as '24 GiB' (default: a GPU's by the
    catalogue, a measured machine's as measured)."""
    profile: Annotated[Path | None, Parameter(group=WHERE)] = None
    """Instead of a device: a file that 'paceline calibrate' wrote."""
    times: Annotated[Path | None, Parameter(group=WHERE)] = None
    """Instead of a device: the run folder of one worker; a step takes as long as its typical step took there."""
    network: Annotated[str | None, Parameter(group=WHERE, allow_leading_hyphen=True)] = None
    """Between hosts: a name or a rate, such as 25gbit or '30 Gbit/s,10 us' (default 10gbit): 'paceline networks'.
    With a profile that was made on several hosts: measured."""
    per_host: Annotated[int | None, Whole, Parameter(group=WHERE)] = None
    """Workers a host (default 1)."""
    inside: Annotated[str | None, Parameter(group=WHERE)] = None
    """Between workers of a host, such as nvlink3 (default: shared memory of a small machine, 4 GB/s)."""
    cluster: Annotated[str | None, Parameter(group=WHERE)] = None
    """A .toml file or an inline description instead, as 'paceline simulate' has it; its first workers are asked for."""
    backend: Annotated[Literal["shm", "gloo"] | None, Parameter(group=WHERE)] = None
    """On a measured machine: shm, as 'paceline train' has it (default), or gloo over the loopback."""


@Parameter(name="*")
@dataclass(kw_only=True)
class WayOptions:
    """How the workers agree, and what is asked about."""

    workers: Annotated[
        str | None, Parameter(name=["--workers", "-np"], group=AGREE, allow_leading_hyphen=True)
    ] = None
    """How many: 1,2,4,8 or 1-8 (default 1,2,4,8,16,32,64,128)."""
    batch_size: Annotated[int | None, Whole, Parameter(name=["--batch-size", "-b"], group=AGREE)] = None
    """Samples a worker and step (default 32, or those of --times); with --scaling strong, of all workers together."""
    accumulate: Annotated[int | None, Whole, Parameter(group=AGREE)] = None
    """Such mini-batches a step, whose gradients are added up (default 1, or as the job says)."""
    scaling: Annotated[Literal["weak", "strong"], Parameter(group=AGREE, show_default=False)] = "weak"
    """weak (default): a worker keeps its batch. strong: the batch is divided among the workers."""
    strategy: Annotated[list[str] | None, Parameter(group=AGREE, negative=())] = None
    """How workers agree (default all-reduce); may be repeated, to compare. See 'paceline strategies'."""
    collective: Annotated[str | None, Parameter(group=AGREE)] = None
    """How all-reduces are done: native (default) or a schedule's name, see 'paceline explain'."""
    codec: Annotated[str | None, Parameter(group=AGREE)] = None
    """What goes on the wire (default identity: gradients as they are)."""
    servers: Annotated[int | None, Whole, Parameter(group=AGREE)] = None
    """Servers that keep the parameters, 1 to 64 (default 1); of ps, ssp and async."""
    jitter: Annotated[float | None, Parameter(group=AGREE)] = None
    """Spread of compute times: 0.05 varies a typical step by a twentieth (default 0)."""


@Parameter(name="*")
@dataclass(kw_only=True)
class CostOptions:
    """By which model times are worked out."""

    cost_model: Annotated[Literal["paceline", "paleo"], Parameter(group=WHERE, show_default=False)] = (
        "paceline"
    )
    """paceline (default), or paleo: Paleo's own model (Qi et al., 2017), with its own table."""
    ppp_comp: Annotated[float | None, Parameter(group=WHERE)] = None
    """Of Paleo's model: the part of the device's peak that is reached, such as 0.62 (default 1)."""
    ppp_comm: Annotated[float | None, Parameter(group=WHERE)] = None
    """Of Paleo's model: the part of the network's bandwidth that is reached (default 1)."""


@Parameter(name="*")
@dataclass(kw_only=True)
class MoneyOptions:
    """What it costs."""

    price: Annotated[float | None, Parameter(group=MONEY)] = None
    """Price of a worker for an hour."""
    host_price: Annotated[float | None, Parameter(group=MONEY)] = None
    """Price of a whole host for an hour, instead."""
    epochs: Annotated[int | None, Whole, Parameter(group=MONEY)] = None
    """Passes over the training data: adds the time of the whole training."""
    samples: Annotated[int | None, Whole, Parameter(group=MONEY)] = None
    """Samples of an epoch, where the job does not say."""


def predict(
    name: str | None = None,
    /,
    *,
    subject: SubjectOptions | None = None,
    compute: ComputeOptions | None = None,
    way: WayOptions | None = None,
    money: MoneyOptions | None = None,
    cost: CostOptions | None = None,
    layers: Annotated[bool, Parameter(group=SHOWN, negative=(), show_default=False)] = False,
    chart: Annotated[bool, Parameter(group=SHOWN, negative=(), show_default=False)] = False,
    svg: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    out: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    as_json: Annotated[bool, Parameter(name="--json", group=SHOWN, negative=(), show_default=False)] = False,
) -> int:
    """Predict how fast a training will be, on hardware that is not there yet.

    The model is traced without weights and without a GPU; a device turns its operators into time; the strategy's
    program runs on the described network. The answer first: faster or
    slower than one worker, by how much and why; then rows by number of workers, and what would help.

    Parameters
    ----------
    name
        The model: one that ships, such as resnet50 ('paceline models'), or your own by import path.
    layers
        Show where a worker's step goes, module by module.
    chart
        Draw the speed-up by workers below the table.
    svg
        Draw it into this .svg file, with its interval.
    out
        Write the whole prediction to this file, for a later comparison with what was measured.
    as_json
        One JSON document instead of text.
    """
    with without_collecting():
        from paceline.studies.predict import predict as predict_request

    request = _request(name, subject or SubjectOptions(), compute, way, money, cost)
    if svg is not None and svg.suffix != ".svg":
        raise UsageError(f"--svg {svg}: name a file that ends in .svg")
    for option, value in {"--chart": chart, "--svg": svg}.items():
        if value and request.cost_model == "paleo":
            raise UsageError(
                f"{option} does not go with --cost-model paleo, which prints its own table; leave it out"
            )
    from paceline.reports.predict.text import ProgressLine

    progress = ProgressLine(sys.stderr)
    prediction = predict_request(request, modules=layers, progress=progress)
    progress.done()
    _write(prediction, out, svg)
    print("\n".join([_document(prediction)] if as_json else _lines(prediction, chart)))  # noqa: T201
    return 0


def _request(name: str | None, subject: SubjectOptions, *groups: object) -> "PredictRequest":
    from paceline.studies.predict import PredictRequest
    from paceline.studies.predict.request import parse_counts

    options = [vars(group) for group in groups if group is not None]
    given: dict[str, Any] = {
        key: value for group in options for key, value in group.items() if value is not None
    }
    if "workers" in given:
        given["workers"] = parse_counts(given["workers"])
    if "strategy" in given:
        given["strategies"] = tuple(given.pop("strategy"))
    return PredictRequest(
        model=name,
        job=subject.spec(),
        shape=subject.shape(),
        classes=subject.classes,
        optimizer=subject.optimizer,
        **given,
    )


def _document(prediction: "Prediction") -> str:
    from paceline.records.files import to_document

    return json.dumps(to_document(prediction), indent=2)


def _write(prediction: "Prediction", out: Path | None, picture: Path | None) -> None:
    """The files that were asked for."""
    from paceline.reports.predict.svg import picture as draw

    if out is not None:
        _write_text(out, _document(prediction) + "\n")
    if picture is not None:
        _write_text(picture, draw(prediction))


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; name a file in an existing folder"
        ) from error
    sys.stderr.write(f"wrote {path}\n")


def _lines(prediction: "Prediction", chart: bool) -> list[str]:
    from paceline.reports.predict.chart import chart_lines
    from paceline.reports.predict.table import module_lines, paleo_lines
    from paceline.reports.predict.text import text_lines
    from paceline.reports.text import can_draw

    if prediction.cost_model == "paleo":
        return paleo_lines(prediction)
    lines = text_lines(prediction)
    if prediction.modules:
        lines += ["", *module_lines(prediction.modules)]
    if chart:
        lines += ["", *chart_lines(prediction, unicode=can_draw(sys.stdout))]
    return lines

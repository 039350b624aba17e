"""``paceline.plan``: what to train on, and how, for a deadline or a budget."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.api.arguments import SPECS_OF_ALL, counts_of, naming_arguments, specs_of
from paceline.api.result import StudyResult, flat
from paceline.api.subjects import with_subject
from paceline.errors import ArgumentError, UsageError
from paceline.units import parse_seconds

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

    from paceline.codecs.base import Codec
    from paceline.jobs.job import Job, Traceable
    from paceline.strategies.base import Strategy
    from paceline.studies.plan import Offer, PlanRequest, TrainingPlan

SHOWN = (
    "hardware",
    "workers",
    "strategy",
    "codec",
    "batch",
    "time",
    "time_low",
    "time_high",
    "cost",
    "unknowns",
)


@naming_arguments
def plan(
    model_or_name: "str | nn.Module | Job | Traceable | Callable[[], Any] | None" = None,
    /,
    *,
    deadline: str | float | None = None,
    budget: float | None = None,
    hardware: "str | Offer | Sequence[str | Offer] | None" = None,
    offers: str | Path | None = None,
    input: "str | Sequence[int] | Tensor | Mapping[str, Tensor] | tuple[Tensor, ...] | None" = None,  # noqa: A002
    loss: "Callable[[Any, Any], Tensor] | None" = None,
    classes: int | None = None,
    optimizer: "str | Callable[..., optim.Optimizer] | optim.Optimizer | None" = None,
    job: "str | Job | Callable[[], Job] | None" = None,
    data: str | None = None,
    data_dir: str | None = None,
    model: "str | nn.Module | Callable[[], Any] | None" = None,
    precision: Literal["bf16"] | None = None,
    epochs: int | None = None,
    samples: int | None = None,
    workers: str | int | Iterable[int] | None = None,
    batch_size: str | int | Iterable[int] | None = None,
    largest_batch: int | None = None,
    reference_batch: float | None = None,
    strategy: "str | Strategy | Sequence[str | Strategy] | None" = None,
    codec: "str | Codec | Sequence[str | Codec] | None" = None,
    servers: int | None = None,
    convergence: str | Path | None = None,
    target_accuracy: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> "StudyResult[TrainingPlan]":
    """Find what to train on, and how, for a deadline or a budget, as ``paceline plan`` does.

    Args:
        model_or_name: As for ``predict``, and so are all other arguments that say what is trained.
        deadline: How long training may take: "6h", or seconds.
        budget: What it may cost, in the currency of the prices.
        hardware: What can be had, such as "a100:price=2.5,network=25gbit,per-host=8,most=32"; one or several.
        offers: A .toml file with a [[hardware]] table for each, instead or besides.
        input: The shape of one sample or a batch.
        loss: Of a module.
        classes: Number of classes of a model that ships.
        optimizer: A name or an object.
        job: A job of your own.
        data: A data set's name, for a job by its parts.
        data_dir: The folder that holds the data's files.
        model: The model of such a job.
        precision: "bf16", or as PyTorch computes.
        epochs: Passes over the training data.
        samples: Samples of an epoch; without epochs, of the whole training.
        workers: Numbers of workers to consider.
        batch_size: Samples per worker and step to consider: "32,64", 32 or [32, 64].
        largest_batch: The largest batch of all workers together that is considered.
        reference_batch: The global batch that the job is known to learn with.
        strategy: A name, an object, or several.
        codec: A name, an object, or several.
        servers: Servers of strategies that have them.
        convergence: The folder of a 'paceline bench convergence': multiplies samples by what it measured.
        target_accuracy: With it, the accuracy whose samples count.
        progress: Called with a few words now and then.

    Returns:
        A row a candidate, best first; ``value`` is the ``TrainingPlan``; ``value.met`` says whether one is in time.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from paceline.commands.plan import commands
    from paceline.records.files import to_document
    from paceline.studies.plan import make_plan

    given.pop("progress")
    factors = _factors(given.pop("convergence", None), given.pop("target_accuracy", None))
    request = _request(given)
    found = make_plan(request, factors, progress=progress)
    return StudyResult(
        value=found,
        rows=[flat(to_document(one)) for one in found.best],
        document=lambda: {**to_document(found), "commands": commands(found, request)},
        text=lambda: _text(found, request),
        shown=SHOWN,
    )


def _request(given: dict[str, Any]) -> "PlanRequest":
    from paceline.studies.plan import Offer, PlanRequest, parse_offer, read_offers

    hardware = given.pop("hardware", ())
    several = hardware if isinstance(hardware, Sequence) and not isinstance(hardware, str) else [hardware]
    if not all(isinstance(one, str | Offer) for one in several):
        raise ArgumentError(
            "{hardware} is not what can be had: give text, such as 'a100:price=2.5,most=32', or a list of such texts",
            hardware=hardware,
        )
    offered = tuple(parse_offer(one) if isinstance(one, str) else one for one in several)
    if "offers" in given:
        offered += read_offers(Path(given["offers"]))
    if "model_or_name" not in given and not given.keys() & {"job", "data", "data_dir", "model"}:
        raise UsageError("which model? name one, such as resnet50 (see 'paceline models'), or give a job")
    asked = {**with_subject(given), "offers": offered}
    if "model" in asked and "job" in asked:
        raise UsageError(f"model {asked['model']} and a job both say what is trained; leave one of them out")
    if isinstance(text := asked.get("deadline"), str):
        asked["deadline"] = _seconds(text)
    if "workers" in asked:
        asked["workers"] = counts_of(asked["workers"])
    if "batch_size" in asked:
        asked["batch_sizes"] = _batches(asked.pop("batch_size"))
    for kind, name in SPECS_OF_ALL:
        if kind in asked:
            asked[name] = specs_of(asked.pop(kind), kind)
    return PlanRequest(**asked)


def _factors(convergence: str | Path | None, target: float | None) -> Any:
    from paceline.studies.plan.factors import SampleFactors

    if target is not None:
        if convergence is None:
            raise ArgumentError(
                "{target_accuracy} is that of a study: give {convergence}, or leave it out",
                target_accuracy=target,
                convergence=None,
            )
        if not 0 < target <= 1:
            raise ArgumentError(
                "{target_accuracy} must lie between 0 and 1, such as 0.97", target_accuracy=target
            )
    return SampleFactors() if convergence is None else SampleFactors.read(Path(convergence), target)


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except UsageError as mistake:
        raise ArgumentError.about("deadline", mistake) from mistake


def _batches(given: "str | int | Iterable[int]") -> tuple[int, ...]:
    pieces = given.split(",") if isinstance(given, str) else [given] if isinstance(given, int) else given
    try:
        return tuple(sorted(int(piece) for piece in pieces))
    except ValueError:
        raise ArgumentError(
            "{batch_size}: write whole numbers, such as 32,64,128", batch_size=given
        ) from None


def _text(found: "TrainingPlan", request: "PlanRequest") -> str:
    from paceline.commands.plan import commands
    from paceline.reports.plan import text_lines
    from paceline.reports.plan_chart import chart_lines
    from paceline.reports.text import can_draw

    lines = text_lines(found, chart_lines(found, unicode=can_draw(sys.stdout)))
    for said, command in commands(found, request).items():
        lines += ["", f"{said}:", f"  {command}"]
    return "\n".join(lines)

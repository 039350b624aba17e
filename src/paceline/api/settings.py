"""What decides the result of a run, as people give it: the arguments that training and simulating share."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from paceline import jobs, specs
from paceline.api.arguments import TABLES, spec_with
from paceline.api.recipes import check_recipe, follow
from paceline.api.subjects import factory_of
from paceline.collectives import check_collective
from paceline.errors import ArgumentError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.settings import DEFAULT_BATCH, DEFAULT_EPOCHS, Cadence, Settings
from paceline.specs import ObjectSpec
from paceline.specs.objects import path_of

if TYPE_CHECKING:
    from torch import nn, optim

    from paceline.codecs.base import Codec
    from paceline.jobs.job import Job
    from paceline.strategies.base import Strategy

_PARTS = ("data", "data_dir", "model", "optimizer", "schedule", "label_smoothing")


class TrainingArguments(TypedDict, total=False):
    """The words and units are those of the options of 'paceline train'; objects go where names go."""

    job: "str | Job | Callable[[], Job]"
    """Your own job: an import path, an object, or the function that makes it; instead of the parts below."""
    data: str
    data_dir: str
    model: "str | nn.Module | Callable[[], nn.Module]"
    optimizer: "str | optim.Optimizer | Callable[..., optim.Optimizer]"
    lr: float
    schedule: "str | Callable[[float], float]"
    accumulate: int
    clip_norm: float
    precision: str
    label_smoothing: float
    scale_lr: Literal["linear", "sqrt", "none"]
    reference_batch: float
    recipe: str
    servers: int
    batch_size: "int | str | Sequence[int]"
    """Samples of a worker's mini-batch, or one number a worker; of a sweep, those that are compared."""
    slow: "Mapping[int, float] | str | Sequence[str]"
    """{1: 2.5} makes rank 1 take 2.5 times as long to compute."""
    slow_turns: int
    buffers: Literal["average", "rank0"]
    collective: str
    epochs: int
    iterations: int
    target_accuracy: float
    seed: int
    evaluate_every: "str | int"
    """"1 epoch", "500 steps", "never", or epochs."""
    checkpoint_every: "str | int"
    keep: int


class RunArguments(TrainingArguments, total=False):
    strategy: "str | Strategy"
    codec: "str | Codec"


class ComparedArguments(TrainingArguments, total=False):
    """One or several of each, which are compared."""

    strategy: "str | Strategy | Sequence[str | Strategy]"
    codec: "str | Codec | Sequence[str | Codec]"


def run_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that were given, objects made into specs; nothing is imported for a name."""
    asked = {name: value for name, value in given.items() if value is not None}
    if "optimizer" in asked:
        asked["optimizer"] = factory_of(asked["optimizer"])
    for kind in TABLES:
        if kind in asked:
            asked[kind] = spec_with(kind, asked[kind])
    if not isinstance(job := asked.get("job", ""), str):
        asked["job"] = path_of(job) or ObjectSpec.of(job, f"object:{getattr(job, 'name', 'job')}")
    if "collective" in asked:
        check_collective(asked["collective"])
    if "recipe" in asked:
        check_recipe(asked["recipe"])
    return asked


def with_recipe(asked: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments that a recipe stands for, as if they had been given, and a sentence that says so."""
    found = dict(asked)
    recipe = found.pop("recipe", None)
    if recipe is None:
        return found, ""
    changed, sentence = follow(recipe, found)
    return found | changed, sentence


def run_settings(asked: Mapping[str, Any], workers: int | None) -> Settings:
    """Resolve the arguments for this many workers; None leaves out those of single ranks."""
    if workers is None:
        single = ("batch_size", "slow", "slow_turns")
        return run_settings({name: value for name, value in asked.items() if name not in single}, 1)
    found = _fields_of(Settings, asked)
    for name in ("evaluate", "checkpoint"):
        if (cadence := asked.get(f"{name}_every")) is not None:
            found[name] = Cadence.parse(str(cadence), f"{name}_every")
    if asked.get("iterations") is None:
        found.setdefault("epochs", DEFAULT_EPOCHS)
    found |= {"job": _job(asked), "slow": slow_ranks(asked.get("slow", ()))}
    return Settings(batch_sizes=batch_sizes(asked.get("batch_size"), workers), **found)


def _fields_of(kind: type, asked: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in asked.items() if name in names}


def _job(asked: Mapping[str, Any]) -> JobSpec:
    found = _fields_of(JobSpec, asked)
    parts = [name for name in asked if name in (*_PARTS, "lr")]
    if (job := asked.get("job")) and parts:
        raise ArgumentError(
            f"{{job}} brings its own parts, so {{{parts[0]}}} has no place; leave one of them out",
            **{"job": job, parts[0]: None},
        )
    if asked.get("lr") is not None:
        optimizer = asked.get("optimizer", JobSpec.optimizer)
        if isinstance(optimizer, ObjectSpec):
            raise ArgumentError(
                "{lr} has no place where the optimizer is an object, which has its own; leave it out",
                lr=asked["lr"],
            )
        found["optimizer"] = specs.with_setting(optimizer, jobs.OPTIMIZERS, "lr", repr(asked["lr"]))
    return JobSpec(path=job, **found)


def batch_sizes(given: "int | str | Sequence[int] | None", workers: int) -> tuple[int, ...]:
    """Read 32, for all workers alike, or "48,16", one per worker."""
    given = DEFAULT_BATCH if given is None else given
    text = (
        given
        if isinstance(given, str)
        else str(given)
        if isinstance(given, int)
        else ",".join(map(str, given))
    )
    many = ""
    with suppress(ValueError):
        sizes = tuple(int(piece) for piece in text.split(","))
        if len(sizes) in (1, workers):
            return sizes * (workers // len(sizes))
        many = f" gives {len(sizes)} sizes for {workers} workers"
    raise ArgumentError(
        f"{{batch_size}}{many}: write a whole number, or one per worker such as 48,16", batch_size=given
    )


def slow_ranks(given: "Mapping[int, float] | str | Sequence[str]") -> dict[int, float]:
    """Read {1: 2.5} or "1=2.5"."""
    if isinstance(given, Mapping):
        return {int(rank): float(factor) for rank, factor in given.items()}
    texts = [given] if isinstance(given, str) else given
    slow: dict[int, float] = {}
    for piece in (piece for text in texts for piece in text.split(",")):
        rank, _, factor = piece.partition("=")
        try:
            key, value = int(rank), float(factor)
        except ValueError:
            raise ArgumentError("{slow}: write RANK=FACTOR, such as 1=2.5", slow=piece) from None
        if key in slow:
            raise ArgumentError(f"{{slow}} names rank {key} twice; give one factor a rank", slow=None)
        slow[key] = value
    return slow

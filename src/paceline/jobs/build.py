"""From the words that name a job to the job."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.jobs.data.images import Source
from paceline.jobs.imports import call, import_job
from paceline.jobs.job import Job
from paceline.jobs.spec import JobSpec


def build_job(spec: JobSpec) -> Job:
    """Make a user's own job, or one of the parts that ship; its data is read now."""
    if spec.path is not None:
        return replace(import_job(spec.path), **spec.changes)
    # The words are all read before the data is: a typing mistake should not cost a minute.
    source: Source = specs.build(spec.data, DATA, "data")
    make = model_maker(spec.model)
    optimizer = specs.build(spec.optimizer, OPTIMIZERS, "optimizer")
    schedule = specs.build(spec.schedule, SCHEDULES, "schedule")
    images = source.load(spec.data_dir)
    return Job(
        name=f"{specs.short_name(spec.data, DATA)}-{specs.short_name(spec.model, MODELS)}",
        model=make(images.shape, images.classes),
        loss=cross_entropy,
        train=images.train,
        test=images.test,
        optimizer=optimizer,
        schedule=schedule,
        metrics={"accuracy": correct},
        **spec.changes,
    )


def model_maker(text: str) -> Callable[[tuple[int, ...], int], Callable[[], nn.Module]]:
    """What makes a model for samples of a shape and a number of classes.

    A shipped model, or a user's own that is written like one, adapts to them; any other makes its module as it is.
    """
    name, make = specs.short_name(text, MODELS), specs.factory(text, MODELS, "model")
    made = specs.build(text, MODELS, "model") if name in MODELS else _try(make, f"model {text}")
    if isinstance(made, nn.Module):
        return lambda _shape, _classes: make
    if not hasattr(made, "usual"):
        raise UsageError(
            f"model {text} makes a {type(made).__name__}; it must make an nn.Module, or be a dataclass such as "
            "paceline.jobs.models.mlp.Mlp"
        )

    def adapted(shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        look = made.usual.changed(name, shape, classes)
        return partial(made, look.shape, look.classes)

    return adapted


def _try(make: Callable[[], Any], where: str) -> Any:
    """What it makes, without memory where that is possible."""
    try:
        with torch.device("meta"):
            return make()
    except (Exception, SystemExit):
        return call(make, where)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples' highest score is their class's."""
    return (outputs.argmax(dim=1) == targets).sum()

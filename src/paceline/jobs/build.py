"""From what names a job or a model to the job, or to what a trace needs; a mistake in it becomes one sentence."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.jobs.batches import Batch, check_loss
from paceline.jobs.data.images import DataSource
from paceline.jobs.data.tensors import as_data
from paceline.jobs.inputs import ImageInput, InputSpec, choices, noise
from paceline.jobs.job import Job, Traceable
from paceline.jobs.models.layers import Architecture
from paceline.jobs.spec import JobSpec
from paceline.specs.source import CRASHES, raised


def build_job(spec: JobSpec) -> Job:
    """Make a user's own job, or one of the parts that ship; its data is read now."""
    if spec.path is not None:
        return replace(import_job(spec.path), **spec.changes)
    # The words are all read before the data is: a typing mistake should not cost a minute.
    source: DataSource = specs.build(spec.data, DATA, "data")
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
    path = specs.import_path(text, MODELS)
    made: Any = _without_memory(make) if path else specs.build(text, MODELS, "model")
    if made is None:
        made = call(make, f"model {path}")
    if isinstance(made, nn.Module):
        return lambda _shape, _classes: make
    if not hasattr(made, "default_input"):
        raise UsageError(
            f"model {text} makes a {type(made).__name__}; it must make an nn.Module, or be a dataclass such as "
            "paceline.jobs.models.small.Mlp"
        )

    def adapted(shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        inputs = made.default_input.with_shape(name, shape, classes)
        return partial(made, inputs.shape, inputs.classes)

    return adapted


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples' highest score is their class's."""
    return (outputs.argmax(dim=1) == targets).sum()


def import_job(path: str) -> Job:
    """Call the function behind "module:function" or "file.py:function" and check the job that it returns."""
    where, name = f"job {path}", path.rpartition(":")[2]
    function = specs.load(path, "job")
    if not callable(function):
        raise UsageError(f"{where}: {name!r} is a {type(function).__name__}, not a function")
    job = call(function, where)
    if not isinstance(job, Job):
        raise UsageError(f"{where}: {name}() returned a {type(job).__name__}; it must return a paceline.Job")
    return checked_job(where, job)


def call(function: Callable[[], Any], where: str) -> Any:
    """What a user's function returns; ``where`` ends with its path."""
    try:
        return function()
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    except CRASHES as error:
        raise UsageError(f"{where}: {where.rpartition(':')[2]}() raised {raised(error)}") from error


def checked_job(where: str, job: Job) -> Job:
    """The job with its data ready for batches; a UsageError that starts with ``where`` says what is wrong."""
    if isinstance(job.model, nn.Module):
        kind = type(job.model).__name__
        raise UsageError(f"{where}: its model is a {kind} already made; write model=lambda: {kind}(...)")
    functions = {"model": job.model, "optimizer": job.optimizer, "schedule": job.schedule}
    optional = {"loss": job.loss, "compute_loss": job.compute_loss, "collate": job.collate}
    functions |= {name: function for name, function in optional.items() if function is not None}
    functions |= {f"metric {name!r}": metric for name, metric in job.metrics.items()}
    for name, function in functions.items():
        if not callable(function):
            raise UsageError(f"{where}: its {name} is a {type(function).__name__}; it must be a function")
    train, batch = as_data(job.train, f"{where}: its training data", job.collate)
    test = None if job.test is None else as_data(job.test, f"{where}: its test data", job.collate)[0]
    try:
        check_loss(job, batch)
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    return replace(job, train=train, test=test)


def traceable_of(
    text: str, *, shape: tuple[int, ...] | None = None, classes: int | None = None, optimizer: str = "sgd"
) -> Traceable | Job:
    """The subject that a model's spec names, or that a user's own function makes.

    The spec is of a shipped model, "resnet50" or "gpt:layers=24"; shape and classes are its usual ones where
    they are not given. Else it is an import path, "module:name" or "file.py:name", of an ``nn.Module``, for which
    the shape must be given, or of a function without arguments that returns one, a Job or a Traceable.
    """
    make_optimizer = specs.build(optimizer, OPTIMIZERS, "optimizer")
    if specs.import_path(text, MODELS) is not None:
        return _imported(text, shape, classes, make_optimizer)
    name = specs.short_name(text, MODELS)
    architecture: Architecture = specs.build(text, MODELS, "model")
    inputs = architecture.default_input.with_shape(name, shape, classes)
    return _of_input(name, architecture, inputs, make_optimizer)


def traceable_of_job(spec: JobSpec) -> Traceable | Job:
    """What a job trains, fed with samples that look like its data."""
    if spec.path is not None:
        return replace(import_job(spec.path), **spec.changes)
    source: DataSource = specs.build(spec.data, DATA, "data")
    make = model_maker(spec.model)
    make_optimizer = specs.build(spec.optimizer, OPTIMIZERS, "optimizer")
    images = source.load(spec.data_dir)
    inputs = ImageInput(shape=images.shape, classes=images.classes)
    return Traceable(
        name=f"{specs.short_name(spec.data, DATA)}-{specs.short_name(spec.model, MODELS)}",
        model=make(images.shape, images.classes),
        loss=inputs.loss,
        batch=inputs.batch,
        optimizer=make_optimizer,
        train_samples=len(images.train),
        **spec.changes,
    )


def _of_input(
    name: str, architecture: Architecture, inputs: InputSpec, optimizer: Any, train_samples: int | None = None
) -> Traceable | Job:
    return Traceable(
        name=name,
        model=partial(architecture, inputs.shape, inputs.classes),
        loss=inputs.loss,
        batch=inputs.batch,
        optimizer=optimizer,
        train_samples=train_samples,
    )


def _imported(
    text: str, shape: tuple[int, ...] | None, classes: int | None, optimizer: Any
) -> Traceable | Job:
    path = specs.split(text, MODELS)[0]
    where, loaded = f"model {path}", specs.load(path, "model")
    if isinstance(loaded, nn.Module):  # a module that is made already: of copies, none of it is trained
        return _of_module(text, partial(_moved, partial(deepcopy, loaded)), loaded, shape, classes, optimizer)
    if not callable(loaded):
        raise UsageError(f"{where}: {path!r} is a {type(loaded).__name__}, not a class or function")
    function = specs.factory(text, MODELS, "model")
    made: Any = _without_memory(function)
    if isinstance(made, nn.Module):
        return _of_module(text, function, made, shape, classes, optimizer)
    made = call(function, where)
    if isinstance(made, nn.Module):
        return _of_module(text, partial(_moved, function), made, shape, classes, optimizer)
    if hasattr(made, "default_input"):  # written as the models that ship
        name = specs.short_name(text, MODELS)
        return _of_input(name, made, made.default_input.with_shape(name, shape, classes), optimizer)
    if not isinstance(made, Job | Traceable):
        kind = type(made).__name__
        raise UsageError(
            f"{where}: the function returned a {kind}; it must return an nn.Module, a Job or a Traceable"
        )
    if shape is not None or classes is not None:
        kind = type(made).__name__
        raise UsageError(
            f"{where}: its {kind} says what a sample looks like; leave the input shape and the classes out"
        )
    return made if isinstance(made, Traceable) else checked_job(where, made)


def _without_memory(function: Callable[[], Any]) -> nn.Module | None:
    """The module that it makes, which may be larger than all our memory; None if it makes something else."""
    try:
        with torch.device("meta"):
            made = function()
    except (Exception, SystemExit):
        # It reads data, or looks at what it makes; if it is wrong altogether, it fails again and that is reported.
        return None
    return made if isinstance(made, nn.Module) else None


def _moved(function: Callable[[], nn.Module]) -> nn.Module:
    """A module that can only be made with memory, on the device that is the default now."""
    with torch.device("cpu"):
        module = function()
    return module.to(torch.get_default_device())


def _of_module(
    text: str,
    function: Callable[[], Any],
    made: nn.Module,
    shape: tuple[int, ...] | None,
    classes: int | None,
    optimizer: Any,
) -> Traceable | Job:
    """What ``function`` makes, and has ``made`` once, fed with numbers of its own type."""
    if shape is None:
        raise UsageError(
            f"model {text} is an nn.Module, which does not say what it is fed; give the input shape of one "
            "sample, such as 3x224x224"
        )
    if classes is not None and classes < 1:
        raise UsageError(f"{classes} classes are too few; a model needs at least 1")
    return Traceable(
        name=specs.short_name(text, MODELS),
        model=function,
        loss=partial(_score_loss, text),
        batch=partial(_noise, shape, classes or 1, _number_type(made)),
        optimizer=optimizer,
    )


def _noise(shape: tuple[int, ...], classes: int, dtype: torch.dtype, samples: int) -> Batch:
    return noise(samples, *shape).to(dtype), choices(classes, samples)


def _number_type(module: nn.Module) -> torch.dtype:
    """Of its first parameter that is made of real numbers."""
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)


def _score_loss(text: str, outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy, if the module gives a score a class."""
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    found = (
        f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"type {type(outputs).__name__}"
    )
    raise UsageError(
        f"model {text}: its output is of {found} and not a score a class for each sample, so its loss is unknown; "
        "let the function return a paceline.Traceable, which says it"
    )

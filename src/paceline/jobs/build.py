"""From what names a job or a model to the job, or to what a trace needs; a mistake in it becomes one sentence."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline import specs
from paceline.errors import UsageError, raised
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.jobs.batches import Batch, check_loss, describe
from paceline.jobs.data import as_data
from paceline.jobs.datasets import DataSource, Images
from paceline.jobs.inputs import ImageInput, check_classes, choices, noise
from paceline.jobs.instances import copied
from paceline.jobs.job import Job, Traceable
from paceline.jobs.spec import JobSpec
from paceline.specs.source import CRASHES


def build_job(spec: JobSpec) -> Job:
    """Make a user's own job, or one of the parts that ship; its data is read now."""
    if spec.path is not None:
        return replace(import_job(spec.path), **spec.changes)
    schedule = specs.build(spec.schedule, SCHEDULES, "schedule")
    images, parts = _load_parts(spec)
    return Job(
        train=images.train, test=images.test, schedule=schedule, metrics={"accuracy": correct}, **parts
    )


def traceable_of_job(spec: JobSpec) -> Traceable | Job:
    if spec.path is not None:
        return build_job(spec)
    images, parts = _load_parts(spec)
    batch = ImageInput(shape=images.shape, classes=images.classes).batch
    return Traceable(batch=batch, train_samples=len(images.train), **parts)


def _load_parts(spec: JobSpec) -> tuple[Images, dict[str, Any]]:
    # All specs are read before the data is: a typing mistake should not cost a minute.
    source: DataSource = specs.build(spec.data, DATA, "data")
    make, made = _first_made(spec.model)
    if not isinstance(made, nn.Module) and not hasattr(made, "default_input"):
        raise UsageError(
            f"model {spec.model} makes a {type(made).__name__}; it must make an nn.Module, or be a dataclass such as "
            "paceline.jobs.models.small.Mlp"
        )
    optimizer = specs.build(spec.optimizer, OPTIMIZERS, "optimizer")
    images = source.load(spec.data_dir)
    name = specs.short_name(spec.model, MODELS)
    if not isinstance(made, nn.Module):  # it adapts to the data
        inputs = made.default_input.with_shape(name, images.shape, images.classes)
        make = partial(made, inputs.shape, inputs.classes)
    else:
        _check_fits(make, images, f"model {spec.model}", specs.short_name(spec.data, DATA))
    return images, {
        "name": f"{specs.short_name(spec.data, DATA)}-{name}",
        "model": make,
        **_losses(spec.label_smoothing or 0.0),
        "optimizer": optimizer,
        **spec.changes,
    }


def _check_fits(make: Callable[[], Any], images: Images, where: str, data: str) -> None:
    """Refuse a module of one's own that cannot be trained on the data; one that needs memory to run is given some."""
    try:
        with torch.device("meta"), torch.no_grad():
            outputs = make()(noise(2, *images.shape))
    except CRASHES:
        inputs = images.train.take(torch.arange(2))[0]
        try:
            with torch.no_grad():
                outputs = make()(inputs)
        except CRASHES as error:
            raise UsageError(
                f"{where} does not take a batch of {data}, {describe(inputs)}: it raised {raised(error)}; make it fit "
                "the data, or choose other data"
            ) from error
    if not (isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] >= images.classes):
        raise UsageError(
            f"{where} gives {describe(outputs)} for 2 samples of {data}, which has {images.classes} classes; make it "
            "return a score a class for each sample, or give a job with a loss of its own"
        )


def _losses(smoothing: float) -> dict[str, Any]:
    """Cross entropy; targets that are smoothed in training (Szegedy et al., 2016) are whole in tests."""
    if not 0 <= smoothing < 1:
        raise UsageError(
            f"a label smoothing of {smoothing:g} is out of range: it must be at least 0 and less than 1, such as 0.1"
        )
    if not smoothing:
        return {"loss": cross_entropy}
    return {"loss": partial(cross_entropy, label_smoothing=smoothing), "test_loss": cross_entropy}


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples' highest score is their class's."""
    return (outputs.argmax(dim=1) == targets).sum()


def _first_made(text: str) -> tuple[Callable[[], Any], Any]:
    """What makes the thing that a model's spec names, and the first of it, if possible without memory."""
    path, own = specs.import_path(text, MODELS), isinstance(text, specs.ObjectSpec)
    if path is None and not own:
        return specs.factory(text, MODELS, "model"), specs.build(text, MODELS, "model")
    loaded = specs.build(text, MODELS, "model") if path is None else specs.load(path, "model")
    where = f"model {path or text}"
    if isinstance(loaded, nn.Module):  # made already: train copies
        return partial(copied, loaded), loaded
    if own and (isinstance(loaded, Job | Traceable) or hasattr(loaded, "default_input")):
        return lambda: loaded, loaded
    if not callable(loaded):
        raise UsageError(f"{where}: {path or text!r} is a {type(loaded).__name__}, not a class or function")
    make = loaded if own else specs.factory(text, MODELS, "model")
    try:
        with torch.device("meta"):
            made = make()
        if isinstance(made, nn.Module):
            return make, made
    except CRASHES:
        pass  # it reads data, or looks at what it makes; if it is wrong altogether, it fails again and that is reported
    return partial(_moved, make), call(make, where)


def _moved(make: Callable[[], nn.Module]) -> nn.Module:
    """A module that can only be made with memory, on the device that is the default now."""
    with torch.device("cpu"):
        module = make()
    return module.to(torch.get_default_device())


def import_job(path: str) -> Job:
    """Call the function behind "module:function" or "file.py:function" and check the job that it returns."""
    where, name = f"job {path}", path.rpartition(":")[2]
    function = path.made if isinstance(path, specs.ObjectSpec) else specs.load(path, "job")
    if isinstance(function, Job):
        return checked_job(where, function)
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
    functions = {name: getattr(job, name) for name in ("model", "optimizer", "schedule")}
    optional = {name: getattr(job, name) for name in ("loss", "test_loss", "compute_loss", "collate")}
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
    """What a model's spec names, ready for a trace.

    The spec is of a shipped model, "resnet50" or "gpt:layers=24"; shape and classes are its usual ones where
    they are not given. Else it is an import path, "module:name" or "file.py:name", of an ``nn.Module``, for which
    the shape must be given, or of a function without arguments that returns one, a Job or a Traceable.
    """
    make_optimizer = specs.build(optimizer, OPTIMIZERS, "optimizer")
    make, made = _first_made(text)
    name, where = specs.short_name(text, MODELS), f"model {text}"
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Tensor], Tensor]
    if isinstance(made, Job | Traceable):
        if shape is not None or classes is not None:
            kind = type(made).__name__
            raise UsageError(
                f"{where}: its {kind} says what a sample looks like; leave the input shape and the classes out"
            )
        return made if isinstance(made, Traceable) else checked_job(where, made)
    if isinstance(made, nn.Module):
        batch, loss = _batches_for(made, where, shape, classes), partial(_score_loss, where)
    elif hasattr(made, "default_input"):
        inputs = made.default_input.with_shape(name, shape, classes)
        make, batch, loss = partial(made, inputs.shape, inputs.classes), inputs.batch, inputs.loss
    else:
        kind = type(made).__name__
        raise UsageError(
            f"{where}: the function returned a {kind}; it must return an nn.Module, a Job or a Traceable"
        )
    return Traceable(name=name, model=make, loss=loss, batch=batch, optimizer=make_optimizer)


def _batches_for(
    module: nn.Module, where: str, shape: tuple[int, ...] | None, classes: int | None
) -> Callable[[int], Batch]:
    if shape is None:
        raise UsageError(
            f"{where} is an nn.Module, which does not say what it is fed; give the input shape of one sample, such "
            "as 3x224x224"
        )
    dtype = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
    among = check_classes(classes, 1)
    return lambda samples: (noise(samples, *shape).to(dtype), choices(among, samples))


def _score_loss(where: str, outputs: Any, targets: Tensor) -> Tensor:
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    raise UsageError(
        f"{where}: its output is {describe(outputs)} and not a score a class for each sample, so its loss is unknown; "
        "let the function return a paceline.Traceable, which says it"
    )

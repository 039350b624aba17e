"""What is trained, as it is given: by name, by import path, as a module, a job, or a function that makes one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from paceline import jobs
from paceline.api.annotations import LONGEST
from paceline.api.arguments import shape_of, spec_with
from paceline.errors import ArgumentError, UsageError, raised
from paceline.jobs.spec import JobSpec
from paceline.specs import ObjectSpec, build

PARTS = ("data", "data_dir", "model")
"""Arguments that name a job by its parts, beside the optimizer, which a model has too."""


def with_subject(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a prediction or a plan, with what is trained as their requests have it."""
    asked = dict(given)
    named, loss = asked.pop("model_or_name", None), asked.pop("loss", None)
    parts = {name: asked.pop(name) for name in PARTS if name in asked}
    if "optimizer" in asked:
        asked["optimizer"] = spec_with("optimizer", factory_of(asked["optimizer"]))
        if parts or "job" in asked:
            parts["optimizer"] = asked.pop("optimizer")
    if "job" in asked and parts:
        raise ArgumentError(
            "{job} brings its own parts: leave out {data}, {model} and {optimizer}",
            job=asked["job"],
            data=None,
            model=None,
            optimizer=None,
        )
    if _makes(named) and (loss is not None or _is_batch(asked.get("input"))):
        named = _made(named)
    if isinstance(named, Mapping):
        raise UsageError(
            "a dict, such as the state_dict() of a module, does not say what is computed: give the module itself"
        )
    if loss is not None and not is_module(named):
        raise ArgumentError("{loss} is for a module: what else is named has a loss; leave it out", loss=loss)
    if is_module(named):
        subject = _of_module(named, loss, asked)  # which takes what it uses
        return {**asked, "model": subject}
    if "input" in asked:
        asked["shape"] = shape_of(asked.pop("input"))
    if parts:
        if "model" in parts:
            parts["model"] = spec_with("model", parts["model"])
        asked["job"] = JobSpec(**parts)
    elif isinstance(job := asked.get("job"), str):
        asked["job"] = JobSpec(path=job)
    elif job is not None:
        asked.pop("job")
        if named is not None:
            raise ArgumentError("{job} and a model both say what is trained; leave one of them out", job=None)
        named = job
    return asked if named is None else {**asked, "model": spec_with("model", named)}


def is_module(thing: object) -> bool:
    """Whether it is an ``nn.Module`` that is made; does not import torch for a name."""
    if thing is None or isinstance(thing, str | type):
        return False
    from torch import nn

    return isinstance(thing, nn.Module)


def _makes(thing: object) -> bool:
    """Whether it is a class or a function, which may make a module."""
    return callable(thing) and not isinstance(thing, str) and not is_module(thing)


def _is_batch(given: object) -> bool:
    """Whether it is more than the shape of a sample."""
    if given is None or isinstance(given, str):
        return False
    return not isinstance(given, Sequence) or not all(isinstance(side, int) for side in given)


def _made(make: Callable[[], Any]) -> Any:
    """The module that is fed a batch, or has a loss of the user's: without memory, as only its shapes are traced."""
    import torch

    name = getattr(make, "__name__", type(make).__name__)
    try:
        with torch.device("meta"):
            made = make()
    except Exception as error:
        raise UsageError(
            f"{name} makes no module without memory: it raised {raised(error)[:LONGEST]}; give the module itself"
        ) from error
    if not is_module(made):
        raise ArgumentError(
            f"{name} makes no nn.Module but a {type(made).__name__}, which says what it is fed and its loss: leave "
            "{input} and {loss} out",
            input=None,
            loss=None,
        )
    return made


def _of_module(module: Any, loss: Any, asked: dict[str, Any]) -> ObjectSpec:
    from paceline.jobs.instances import traceable_of_instance

    if (example := asked.pop("input", None)) is None:
        raise ArgumentError(
            "a module does not say what it is fed: give {input}, the shape of one sample, such as (3, 224, 224), or a "
            "batch",
            input=None,
        )
    if "classes" in asked:
        raise ArgumentError(
            "{classes} is for a model that ships: a module has its own; leave it out", **asked
        )
    example = shape_of(example) if isinstance(example, str) else example
    optimizer = build(asked.pop("optimizer", "sgd"), jobs.OPTIMIZERS, "optimizer")
    made = traceable_of_instance(module, example, optimizer=optimizer, loss=loss)
    return ObjectSpec.of(made, made.name)


def factory_of(optimizer: Any) -> Any:
    """What makes an optimizer: of one that is made already, its class with its defaults."""
    if isinstance(optimizer, str | type):
        return optimizer
    from torch.optim import Optimizer

    from paceline.jobs.optimizers import constructor_settings

    if not isinstance(optimizer, Optimizer):
        return optimizer
    return partial(type(optimizer), **constructor_settings(type(optimizer), optimizer.defaults))

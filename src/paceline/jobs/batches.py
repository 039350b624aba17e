"""Batches of any nesting: how a model is called with one, where its loss comes from, and one made of shapes alone."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.jobs.job import StepDefinition

Batch = Any
"""Whatever the collate function returns: a tensor, a tuple, a dict, or these inside each other."""


def batch_loss(job: "StepDefinition", model: nn.Module, batch: Batch) -> Tensor:
    """Call the model with a batch and return the mean loss over its samples.

    ``compute_loss`` decides where it is given. With ``loss`` the last element of the batch is the target and the others
    are the model's inputs; where the model is not training, ``test_loss`` may take its place. With neither, the model
    is called with the whole batch and returns its loss itself.
    """
    if job.compute_loss is not None:
        loss = job.compute_loss(model, batch)
    elif job.loss is not None:
        function = job.loss if model.training or job.test_loss is None else job.test_loss
        loss = function(_call(job, model, batch[:-1]), batch[-1])
    else:
        loss = _own_loss(job, _call(job, model, batch))
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise UsageError(
            f"the loss of {job.name!r} is {describe(loss)}; it must give the batch's mean, one number"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UsageError(
            f"the loss of {job.name!r} does not depend on any trainable parameter; "
            "look for detach() or no_grad() in the model"
        )
    return loss


def check_loss(job: "StepDefinition", batch: Batch) -> None:
    if job.loss is not None and job.compute_loss is not None:
        raise UsageError("both loss and compute_loss say how the loss is computed; leave one of them out")
    if job.test_loss is not None and job.loss is None:
        raise UsageError("test_loss replaces loss on test data, and there is no loss; leave it out")
    if job.loss is not None and not _has_target(batch):
        raise UsageError(
            f"a batch is {describe(batch)}, and loss(outputs, targets) needs (inputs, targets); write compute_loss="
            "lambda model, batch: ..., or leave loss out where the model returns its loss"
        )


def targets_of(batch: Batch) -> Any:
    """What a metric compares outputs with: the last of several elements, else the whole batch."""
    return batch[-1] if _has_target(batch) else batch


@contextmanager
def kept_outputs(model: nn.Module) -> Iterator[list[Any]]:
    """A list whose only element, once there is one, is what the model returned last."""
    kept: list[Any] = []

    def keep(_: nn.Module, __: Any, outputs: Any) -> None:
        kept[:] = [outputs]

    with model.register_forward_hook(keep):
        yield kept


def map_tensors(
    function: Callable[[Any], Any],
    batch: Batch,
    is_leaf: Callable[[Any], bool] = lambda part: isinstance(part, Tensor),
) -> Batch:
    """A batch of the same nesting with the function's result for every tensor; whatever is no container stays."""
    if is_leaf(batch):
        return function(batch)
    if isinstance(batch, Mapping):
        values = {key: map_tensors(function, value, is_leaf) for key, value in batch.items()}
        if type(batch) is dict or not hasattr(batch, "update"):
            return values
        made = copy.copy(batch)  # of its own type, as torch's loader makes one to pin its memory
        made.update(values)
        return made
    if isinstance(batch, tuple | list):
        parts = [map_tensors(function, part, is_leaf) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if is_dataclass(batch) and not isinstance(batch, type):
        values = {field.name: getattr(batch, field.name) for field in fields(batch) if field.init}
        return replace(batch, **map_tensors(function, values, is_leaf))
    return batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with all its tensors on the device; whatever has a ``to`` of its own moves itself."""
    if device.type == "cpu":
        return batch
    return map_tensors(lambda part: part.to(device), batch, lambda part: hasattr(part, "to"))


def batch_like(take: Callable[[Tensor], Batch], samples: int) -> Batch:
    """A batch of ``samples`` copies of the first sample, on the device that is the default now.

    Without memory, on "meta", two small batches give the shapes of any: the sides of a tensor stay or grow by the
    same with every sample, whether samples are stacked, padded or joined.
    """
    device = torch.get_default_device()

    def copies(count: int) -> Batch:
        return take(torch.zeros(count, dtype=torch.int64))

    # Samples are real tensors, whatever a trace makes of the calls around.
    with torch.device("cpu"), torch._C._DisableTorchDispatch():
        if device.type != "meta":
            return to_device(copies(samples), device)
        pair = copies(2)
        one, two = ([tensor.shape for tensor in tensors_of(batch)] for batch in (copies(1), pair))
        if not two or [len(shape) for shape in one] != [len(shape) for shape in two]:
            return map_tensors(lambda tensor: tensor.to(device), copies(samples))
        shapes = (
            [side + (more - side) * (samples - 1) for side, more in zip(*sides, strict=True)]
            for sides in zip(one, two, strict=True)
        )
        return map_tensors(lambda tensor: torch.empty(next(shapes), dtype=tensor.dtype, device=device), pair)


def describe(thing: Any) -> str:
    kind = f"a {type(thing).__name__}"
    if isinstance(thing, Tensor):
        return f"a tensor of shape {list(thing.shape)}"
    if isinstance(thing, Mapping):
        return f"{kind} with the keys {', '.join(map(str, thing)) or 'of nothing'}"
    return f"{kind} of {len(thing)}" if isinstance(thing, tuple | list) else kind


def _has_target(batch: Batch) -> bool:
    return isinstance(batch, tuple | list) and len(batch) > 1


def _call(job: "StepDefinition", model: nn.Module, inputs: Any) -> Any:
    spread = isinstance(inputs, tuple | list)
    args = tuple(inputs) if spread else () if isinstance(inputs, Mapping) else (inputs,)
    keywords = {str(key): value for key, value in inputs.items()} if isinstance(inputs, Mapping) else {}
    try:
        return model(*args, **keywords)
    except TypeError as error:
        signature = inspect.signature(model.forward)
        try:
            signature.bind(*args, **keywords)
        except TypeError:
            given = f"the keys {', '.join(keywords)}" if keywords else f"{len(args)} inputs"
            rest = " and a target" if job.loss is not None else ""
            raise UsageError(
                f"job {job.name!r}: a batch has {given}{rest}, and {type(model).__name__}.forward takes "
                f"({', '.join(signature.parameters)}); change the samples or collate, or write "
                "compute_loss=lambda model, batch: ..."
            ) from error
        raise


def _own_loss(job: "StepDefinition", outputs: Any) -> Tensor:
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(found, Tensor) and found.numel() == 1:
        return found
    raise UsageError(
        f"job {job.name!r}: the model returned {describe(outputs)}, which holds no loss; give loss=..., such as "
        "nn.functional.cross_entropy for (inputs, targets), or compute_loss=lambda model, batch: ..."
    )


def tensors_of(batch: Batch) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return found

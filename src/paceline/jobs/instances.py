"""A model that is made already, and an example of what it is fed: a step that can be traced, its weights untouched."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from paceline.errors import UsageError
from paceline.jobs.batches import Batch, batch_like, describe, map_tensors, tensors_of
from paceline.jobs.inputs import choices, noise
from paceline.jobs.job import Traceable

Loss = Callable[[Any, Any], Tensor]


def traceable_of_instance(
    module: nn.Module,
    example: "Batch | Sequence[int]",
    *,
    optimizer: Callable[[Any], Any],
    loss: Loss | None = None,
) -> Traceable:
    """``example`` is the shape of one sample, or a batch: inputs, (inputs, targets), or a dict of keywords.

    Where there are no targets, or no loss, they are assumed by what the model returns, and the trace says so.
    """
    plain = _unwrapped(module)
    batch, has_targets = _batches(plain, example)
    parts: dict[str, Any] = {"loss": loss}
    assumed = Assumption(loss)
    if loss is None or not has_targets:
        parts = {"compute_loss": partial(_assumed_loss, assumed, has_targets)}
    return Traceable(
        name=type(plain).__name__,
        model=partial(copied, plain),
        optimizer=optimizer,
        batch=batch,
        assumed=assumed.words,
        **parts,
    )


def copied(module: nn.Module) -> nn.Module:
    """A copy on the device that is the default now; on "meta" it has shapes and no weights, which are not read."""
    device = torch.get_default_device()
    if device.type != "meta":
        with torch.device("cpu"):
            return deepcopy(module).to(device)
    memo: dict[int, Any] = {}
    for tensor in _all_tensors(module):
        empty = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = empty  # deepcopy takes it for the copy
    made = deepcopy(module, memo)
    assert isinstance(made, nn.Module), "a module's copy is one"
    return made


def _all_tensors(module: nn.Module) -> list[Tensor]:
    others = [value for one in module.modules() for value in vars(one).values() if isinstance(value, Tensor)]
    return [*module.parameters(), *module.buffers(), *others]


def _unwrapped(module: nn.Module) -> nn.Module:
    """Without what torch.compile or data parallelism has put around it."""
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return _unwrapped(module.module)
    inner = getattr(module, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else module


def _batches(module: nn.Module, example: Any) -> tuple[Callable[[int], Batch], bool]:
    """What makes a batch, and whether its last element is the target."""
    if isinstance(example, Sequence) and all(type(side) is int for side in example):
        return _of_shape(module, tuple(example)), False
    found = tensors_of(example)
    if not found or not found[0].dim():
        raise UsageError(
            f"the input is {describe(example)}; give the shape of one sample, such as (3, 224, 224), or a batch of "
            "tensors whose first side is the samples"
        )
    many = len(found[0])

    kept = map_tensors(lambda one: one.detach().cpu(), example)

    def take(indices: Tensor) -> Batch:
        return map_tensors(lambda one: one[indices] if one.dim() and len(one) == many else one, kept)

    return partial(batch_like, take), isinstance(example, tuple | list) and len(example) > 1


def _of_shape(module: nn.Module, shape: tuple[int, ...]) -> Callable[[int], Batch]:
    if min(shape, default=1) < 1:
        raise UsageError(f"an input of shape {shape} has nothing in it: every side must be at least 1")
    first = next((one for one in module.modules() if not any(True for _ in one.children())), module)
    if isinstance(first, nn.Embedding):
        return lambda samples: choices(first.num_embeddings, samples, *shape)
    dtype = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
    return lambda samples: noise(samples, *shape).to(dtype)


@dataclass
class Assumption:
    """What is assumed of a loss, once the model has returned something."""

    loss: Loss | None
    said: list[str] = field(default_factory=list)

    def words(self) -> str:
        return self.said[0] if self.said else ""

    def say(self, sentence: str) -> None:
        self.said[:] = [sentence]


def _assumed_loss(assumed: Assumption, has_targets: bool, model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = (batch[:-1], batch[-1]) if has_targets else (batch, None)
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    else:
        outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if assumed.loss is not None:
        return _with_assumed_targets(assumed, assumed.loss, outputs)
    if isinstance(own, Tensor) and own.numel() == 1:
        return own
    scores = _scores(outputs)
    if isinstance(scores, Tensor) and scores.numel() == 1:
        return scores
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        raise UsageError(
            f"the model returned {describe(outputs)}, whose loss is not to be guessed; give loss=..."
        )
    return _guessed(assumed, scores, targets, inputs)


def _scores(outputs: Any) -> Any:
    """The tensor that a loss is taken of: that of its name, or the first."""
    for name in ("logits", "scores", "out"):
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    return next(iter(tensors_of(outputs)), outputs)


def _guessed(assumed: Assumption, scores: Tensor, targets: Any, inputs: Batch) -> Tensor:
    """Cross entropy where there is a score a class, else the mean square of errors."""
    tokens = tensors_of(inputs)[0]
    if targets is not None and isinstance(targets, Tensor) and targets.is_floating_point():
        assumed.say("loss: the mean square of errors, which is assumed")
        return mse_loss(scores, targets)
    if scores.dim() == 2:
        assumed.say(f"loss: cross entropy among {scores.shape[1]:,} classes, which is assumed")
        return cross_entropy(scores, choices(scores.shape[1], len(scores)) if targets is None else targets)
    if scores.dim() == 3 and scores.shape[:2] == tokens.shape[:2]:
        assumed.say(f"loss: cross entropy of each token among {scores.shape[2]:,}, which is assumed")
        if targets is None:
            targets = choices(scores.shape[2], *scores.shape[:2])
        return cross_entropy(scores.flatten(0, 1), targets.flatten())
    if targets is not None and scores.dim() > 1:
        assumed.say(f"loss: cross entropy among {scores.shape[1]:,} classes, which is assumed")
        return cross_entropy(scores, targets)
    assumed.say("loss: the mean square of errors, which is assumed")
    return mse_loss(scores, torch.zeros_like(scores))


def _with_assumed_targets(assumed: Assumption, loss: Loss, outputs: Any) -> Tensor:
    """The user's own loss, whose targets are not given: a class a sample or token, or a tensor like the outputs."""
    scores = _scores(outputs)
    if not isinstance(scores, Tensor):
        raise UsageError(
            f"the model returned {describe(outputs)}; give input=(inputs, targets) for this loss"
        )
    if scores.dim() == 2:
        try:
            found = loss(outputs, choices(scores.shape[1], len(scores)))
        except (RuntimeError, ValueError, TypeError, IndexError):
            pass
        else:
            assumed.say(f"targets: one of {scores.shape[1]:,} classes a sample, which is assumed")
            return found
    assumed.say("targets: like the model's outputs, which is assumed")
    return loss(outputs, torch.zeros_like(scores))

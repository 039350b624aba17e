"""What a sample looks like, where no data is read: its shape, its targets, and the loss that fits them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from paceline.errors import UsageError
from paceline.jobs.batches import Batch


@dataclass(frozen=True, kw_only=True)
class ImageInput:
    """An image, and one class of it."""

    shape: tuple[int, ...]
    classes: int
    smallest: int = 1
    """Pixels that the shorter side must have, for the model to have something left at its end."""

    def with_shape(self, model: str, shape: tuple[int, ...] | None, classes: int | None) -> Self:
        """The same with another shape or number of classes; a UsageError where ``model`` cannot take it."""
        shape = _positive(model, self.shape if shape is None else shape)
        if len(shape) != 3:
            raise UsageError(
                f"model {model!r} takes images and {_show(shape)!r} is not the shape of one; "
                f"give channels x height x width, such as {_show(self.shape)}"
            )
        if min(shape[1:]) < self.smallest:
            raise UsageError(
                f"model {model!r} needs images of at least {self.smallest}x{self.smallest} pixels and these have "
                f"{shape[1]}x{shape[2]}; take larger images, or a model for small ones: cnn, mlp or resnet18"
            )
        return replace(self, shape=shape, classes=check_classes(classes, self.classes))

    def batch(self, samples: int) -> Batch:
        return noise(samples, *self.shape), choices(self.classes, samples)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)


@dataclass(frozen=True, kw_only=True)
class TokenInput:
    """A sequence of tokens, and at every position the token that follows, out of as many as there are classes."""

    shape: tuple[int, ...]
    classes: int

    def with_shape(self, model: str, shape: tuple[int, ...] | None, classes: int | None) -> Self:
        shape = _positive(model, self.shape if shape is None else shape)
        if len(shape) != 1:
            raise UsageError(
                f"model {model!r} takes sequences of tokens and {_show(shape)!r} is the shape of something else; "
                f"give a length, such as {self.shape[0]}, or choose a model for images, such as cnn"
            )
        if shape > self.shape:
            raise UsageError(
                f"model {model!r} has a context of {self.shape[0]:,} tokens and {shape[0]:,} are asked for; "
                f"ask for fewer, or set context={shape[0]}"
            )
        if classes not in (None, self.classes):
            raise UsageError(
                f"model {model!r} has a vocabulary of {self.classes:,} and {classes:,} classes are asked for; "
                f"leave the classes out, or set vocabulary={classes}"
            )
        return replace(self, shape=shape)

    def batch(self, samples: int) -> Batch:
        return choices(self.classes, samples, *self.shape), choices(self.classes, samples, *self.shape)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def noise(*shape: int) -> Tensor:
    return _drawn(torch.empty(shape), Tensor.normal_)


def choices(among: int, *shape: int) -> Tensor:
    return _drawn(torch.empty(shape, dtype=torch.int64), lambda tensor: tensor.random_(among))


def _drawn(tensor: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
    # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
    return tensor if tensor.is_meta else draw(tensor)


def _positive(model: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if min(shape, default=0) < 1:
        raise UsageError(f"model {model!r} cannot be fed {_show(shape)!r}: every side must be at least 1")
    return shape


def check_classes(asked: int | None, usual: int) -> int:
    if asked is not None and asked < 1:
        raise UsageError(f"{asked} classes are too few; a model needs at least 1")
    return usual if asked is None else asked


def _show(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

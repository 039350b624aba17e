"""PowerSGD: matrices as products of thin ones (Vogels et al., 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Context, Message, Reduction, Shape, check_lengths
from paceline.codecs.reduction import Sum
from paceline.specs.ranges import from_1_to


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Codec):
    """Send a matrix as the product P Q' of two thin ones, by one power iteration a step (Vogels et al., 2019).

    Q is kept from step to step. What has one dimension, or would not become smaller, is sent as it is.
    """

    rank: Annotated[int, from_1_to(4096)] = 4
    """Columns of the thin matrices; fewer are fewer bytes and more error to feed back."""
    sums: ClassVar[bool] = True

    def initial_state(self, shape: Shape, seed: int) -> dict[str, Tensor]:
        """Q, the same on all ranks."""
        if not self._is_thinner(shape):
            return {}
        generator = None if torch.get_default_device().type == "meta" else torch.Generator().manual_seed(seed)
        return {"q": torch.randn(prod(shape[1:]) * self.rank, generator=generator)}

    def reduce(self, vector: Tensor, context: Context) -> Reduction:
        """P is summed, together with all that is no matrix, and made orthogonal; then Q is."""
        matrices, others = self._take_apart(vector, context)
        starts = self._starts(context)
        left = [matrix @ start for matrix, start in zip(matrices, starts, strict=True)]
        first = _flat([*left, *others])
        yield Sum(first)
        *left, rest = _shaped(first, [*left, first[sum(one.numel() for one in left) :]])
        left = [_orthogonal(one) for one in left]
        right = [matrix.T @ one for matrix, one in zip(matrices, left, strict=True)]
        self._forget(left, right, context)
        if right:
            second = _flat(right)
            yield Sum(second)
            right = _shaped(second, right)
        self._keep(right, context)
        self._fill(vector, left, right, rest, context)

    def encode(self, vector: Tensor, context: Context) -> Message:
        """For one receiver: P, Q and all that is no matrix, one after the other."""
        matrices, others = self._take_apart(vector, context)
        left = [
            _orthogonal(matrix @ start) for matrix, start in zip(matrices, self._starts(context), strict=True)
        ]
        right = [matrix.T @ one for matrix, one in zip(matrices, left, strict=True)]
        self._keep(right, context)
        return (_flat([*left, *right, *others]),)

    def decode(self, message: Message, context: Context) -> Tensor:
        shapes = [shape for shape in context.layout.shapes if self._is_thinner(shape)]
        heights, widths = [shape[0] for shape in shapes], [prod(shape[1:]) for shape in shapes]
        sizes = [self.rank * many for many in (*heights, *widths)]
        rest = context.layout.elements - sum(map(prod, shapes))
        check_lengths(message, sum(sizes) + rest)
        *thin, last = message[0].split([*sizes, rest])
        thin = [one.view(-1, self.rank) for one in thin]
        out = message[0].new_empty(context.layout.elements)
        self._fill(out, thin[: len(shapes)], thin[len(shapes) :], last, context)
        return out

    def _is_thinner(self, shape: Shape) -> bool:
        if len(shape) < 2:
            return False
        height, width = shape[0], prod(shape[1:])
        return self.rank < min(height, width) and self.rank * (height + width) < height * width

    def _take_apart(self, vector: Tensor, context: Context) -> tuple[list[Tensor], list[Tensor]]:
        matrices, others = [], []
        for part, shape in zip(
            vector.split([*map(prod, context.layout.shapes)]), context.layout.shapes, strict=True
        ):
            if self._is_thinner(shape):
                matrices.append(part.view(shape[0], -1))
            else:
                others.append(part)
        return matrices, others

    def _starts(self, context: Context) -> list[Tensor]:
        """The Q of the round before, of which only the directions count."""
        return [_orthogonal(one) for one in self._kept(context)]

    def _kept(self, context: Context) -> list[Tensor]:
        widths = [prod(shape[1:]) for shape in context.layout.shapes if self._is_thinner(shape)]
        if not widths:
            return []
        parts = context.state["q"].split([self.rank * width for width in widths])
        return [one.view(-1, self.rank) for one in parts]

    def _keep(self, right: Sequence[Tensor], context: Context) -> None:
        """A column of zeros, of a gradient of zeros, is not kept: from it none but zeros would ever come."""
        for kept, new in zip(self._kept(context), right, strict=True):
            kept.copy_(torch.where(new.any(dim=0), new, kept))

    def _forget(self, left: Sequence[Tensor], right: Sequence[Tensor], context: Context) -> None:
        """Subtract from the memory what this rank sends: P times its own Q', and all that is no matrix."""
        if context.memory is None:
            return
        matrices, others = self._take_apart(context.memory, context)
        for matrix, one, other in zip(matrices, left, right, strict=True):
            matrix.addmm_(one, other.T, alpha=-1 / context.share)
        for part in others:
            part.zero_()

    def _fill(
        self, out: Tensor, left: Sequence[Tensor], right: Sequence[Tensor], rest: Tensor, context: Context
    ) -> None:
        matrices, others = self._take_apart(out, context)
        for matrix, one, other in zip(matrices, left, right, strict=True):
            torch.mm(one, other.T, out=matrix)
        for part, new in zip(others, rest.split([part.numel() for part in others]), strict=True):
            part.copy_(new)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _shaped(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def _orthogonal(columns: Tensor) -> Tensor:
    """Gram-Schmidt, each column against all before it at once; twice, which is as good as one by one."""
    made = columns.clone()
    for place, column in enumerate(made.unbind(dim=1)):
        before = made[:, :place]
        for _ in range(2 if place else 0):
            column.sub_(before @ (before.T @ column))
        column.div_(column.norm().clamp_min(torch.finfo(column.dtype).tiny))
    return made

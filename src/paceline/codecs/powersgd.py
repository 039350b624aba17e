"""PowerSGD: matrices as products of thin ones (Vogels et al., 2019)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import Context
from paceline.codecs.exchanges import Reduction, Sum
from paceline.codecs.messages import CorruptMessage, Message, blank, check_message
from paceline.specs.ranges import from_1_to


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Codec):
    """Send a matrix as the product P Q' of two thin ones, by one power iteration a step (Vogels et al., 2019).

    Q is kept from step to step. What has one dimension, or would not become smaller, is sent as it is.
    """

    # The columns of P and Q are held as rows: a product with a few rows is several times as fast as with few columns.
    # Matrices of one shape are multiplied one by one: to copy them side by side would take longer.

    rank: Annotated[int, from_1_to(4096)] = 4
    """Columns of the thin matrices; fewer are fewer bytes and more error to feed back."""
    sums: ClassVar[bool] = True
    example: ClassVar[Mapping[str, str]] = MappingProxyType({"rank": "1"})

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:
        """Q, the same on all ranks."""
        if not self._is_thinner(shape):
            return {}
        many = prod(shape[1:]) * self.rank
        if torch.get_default_device().type == "meta":
            return {"q": torch.empty(many)}
        return {"q": torch.randn(many, generator=torch.Generator().manual_seed(seed), device="cpu")}

    def reduce(self, vector: Tensor, context: Context) -> Reduction:
        """P is summed, together with all that is no matrix, and made orthogonal; then Q is summed."""
        first = context.round_trip(self._first(vector, context))
        own = self._rest(first, context).clone()
        yield Sum(first, "P = M Q, with the Q of the step before")
        left = _orthogonal(self._factors(first, context, 0))
        second = context.round_trip(self._second(vector, left, context))
        if context.memory is not None:
            self._add(left, second, own, context.memory, context, -1 / context.share)
        if left:
            yield Sum(second, "Q = M' P, with P made orthogonal")
        self._keep(second, context)
        self._add(left, second, self._rest(first, context), vector.zero_(), context)

    def encode(self, vector: Tensor, context: Context) -> Message:
        """For one receiver: P and all that is no matrix, then Q."""
        first = self._first(vector, context)
        left = self._factors(first, context, 0)
        for one, made in zip(left, _orthogonal(left), strict=True):
            one.copy_(made)
        second = self._second(vector, left, context)
        self._keep(second, context)
        return first, second

    def decode(self, message: Message, context: Context) -> Tensor:
        out = blank(message, context)
        self.write(message, out, context)
        return out

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        thin = [shape for shape in context.layout.shapes if self._is_thinner(shape)]
        heights, widths = (sum(self._size(shape, side) for shape in thin) for side in (0, 1))
        check_message(message, heights + context.layout.elements - sum(map(prod, thin)), widths)
        first, second = (tensor.to(out.dtype) for tensor in message)
        if thin and not out.is_meta:
            most = self.rank * first[:heights].double().abs().max() * second.double().abs().max()
            if most > torch.finfo(out.dtype).max:
                raise CorruptMessage("a message of two factors whose product is not finite")
        self._add(self._factors(first, context, 0), second, self._rest(first, context), out, context, alpha)

    def _is_thinner(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        height, width = shape[0], prod(shape[1:])
        return self.rank < min(height, width) and self.rank * (height + width) < height * width

    def _size(self, shape: tuple[int, ...], side: int) -> int:
        """Elements of a matrix's P (0) or Q (1)."""
        return self.rank * (prod(shape[1:]) if side else shape[0])

    def _take_apart(self, vector: Tensor, context: Context) -> tuple[list[Tensor], list[Tensor]]:
        """The matrices, and all else."""
        matrices, others = [], []
        layout = context.layout
        for shape, start in zip(layout.shapes, layout.offsets, strict=False):
            part = vector[start : start + prod(shape)]
            if self._is_thinner(shape):
                matrices.append(part.view(shape[0], -1))
            else:
                others.append(part)
        return matrices, others

    def _factors(self, flat: Tensor, context: Context, side: int) -> list[Tensor]:
        """The P (0) or the Q (1) of each matrix, which lie one after the other."""
        found = []
        start = 0
        for shape in context.layout.shapes:
            if self._is_thinner(shape):
                size = self._size(shape, side)
                found.append(flat[start : start + size].view(self.rank, -1))
                start += size
        return found

    def _rest(self, first: Tensor, context: Context) -> Tensor:
        """What follows the P of all matrices."""
        return first[sum(one.numel() for one in self._factors(first, context, 0)) :]

    def _first(self, vector: Tensor, context: Context) -> Tensor:
        """Each matrix times its Q of the round before, of which only the directions count; and all else."""
        matrices, others = self._take_apart(vector, context)
        starts = _orthogonal(self._kept(context))
        made = [start.to(vector.dtype) @ matrix.T for start, matrix in zip(starts, matrices, strict=True)]
        return torch.cat([one.reshape(-1) for one in (*made, *others, vector[:0])])

    def _second(self, vector: Tensor, left: Iterable[Tensor], context: Context) -> Tensor:
        matrices, _ = self._take_apart(vector, context)
        made = [one @ matrix for one, matrix in zip(left, matrices, strict=True)]
        return torch.cat([one.reshape(-1) for one in (*made, vector[:0])])

    def _kept(self, context: Context) -> list[Tensor]:
        return self._factors(context.state.get("q", torch.empty(0)), context, 1)

    def _keep(self, second: Tensor, context: Context) -> None:
        """A row of zeros, of a gradient of zeros, is not kept: from it none but zeros would ever come."""
        for kept, new in zip(self._kept(context), self._factors(second, context, 1), strict=True):
            kept.copy_(torch.where(new.any(dim=1, keepdim=True), new, kept))

    def _add(
        self,
        left: Iterable[Tensor],
        second: Tensor,
        rest: Tensor,
        out: Tensor,
        context: Context,
        alpha: float = 1.0,
    ) -> None:
        matrices, others = self._take_apart(out, context)
        for matrix, one, other in zip(matrices, left, self._factors(second, context, 1), strict=True):
            matrix.addmm_(one.T, other, alpha=alpha)
        start = 0
        for part in others:
            part.add_(rest[start : start + part.numel()], alpha=alpha)
            start += part.numel()


def _orthogonal(factors: Iterable[Tensor]) -> list[Tensor]:
    """Each with orthogonal rows of length 1, that have the same span."""
    return [torch.linalg.qr(one.T).Q.T for one in factors]

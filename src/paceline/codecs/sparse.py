"""Codecs that send a few of the elements."""

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Context, CorruptMessage, Message, check_lengths
from paceline.specs.ranges import Fraction, NotNegative, Ratio, at_least

MOST_INDEXED = 2**31


def kept(count: int, ratio: float) -> int:
    return min(count, max(1, round(ratio * count)))


@dataclass(frozen=True, kw_only=True)
class Sparse(Codec):
    """Elements and their indices; ranks choose different ones, so messages cannot be summed."""

    def message(self, vector: Tensor, indices: Tensor) -> Message:
        if vector.numel() > MOST_INDEXED:
            raise ValueError(
                f"a vector of {vector.numel():,} elements is too long to send indices; cut it to {MOST_INDEXED:,}"
            )
        return vector[indices], indices.to(torch.int32)

    def decode(self, message: Message, context: Context) -> Tensor:
        out = message[0].new_zeros(context.layout.elements)
        self.add(message, out, context)
        return out

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        values, indices = message
        check_lengths(message, indices.numel(), indices.numel())
        if not indices.is_meta and indices.numel():
            low, high = indices.aminmax()
            if low < 0 or high >= context.layout.elements:
                raise CorruptMessage(f"an index outside of a vector of {context.layout.elements} elements")
        out.index_add_(0, indices, values.to(out.dtype), alpha=alpha)


@dataclass(frozen=True, kw_only=True)
class TopK(Sparse):
    """Send the largest elements and their indices (Aji and Heafield, 2017)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        count = kept(vector.numel(), self.ratio)
        return self.message(vector, vector.abs().topk(count, sorted=False).indices)


@dataclass(frozen=True, kw_only=True)
class DGC(TopK):
    """Top-k with momentum correction, clipping and a sparsity warm-up (deep gradient compression; Lin et al., 2018)."""

    ratio: Ratio = 0.001
    """Fraction of the elements that is sent after the warm-up."""
    momentum: Fraction = 0.9
    """Each rank's own momentum, which replaces the optimizer's."""
    clip: NotNegative = 0.0
    """Largest norm of the mean gradient, of which each of n ranks may have 1/sqrt(n); 0: no clipping."""
    warmup: Annotated[int, at_least(0)] = 0
    """Steps in which the ratio falls from 25 % to its value, each of its stages a fourth of the one before."""
    memory: Literal["error"] = "error"  # type: ignore[assignment]
    """error: what is not sent is kept; the momentum correction needs it."""
    has_momentum: ClassVar[bool] = True

    def at(self, round: int) -> "DGC":  # noqa: A002
        if round >= self.warmup:
            return self
        stages = 1
        while 0.25**stages > self.ratio:
            stages += 1
        stage = ceil((round + 1) * stages / self.warmup)
        ratio = max(self.ratio, 0.25**stage)
        return DGC(ratio=ratio, momentum=self.momentum, clip=self.clip)

    def without_memory(self) -> Codec:
        """Top-k alone: momentum is of gradients."""
        return TopK(ratio=self.ratio, memory="none")

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {"momentum": torch.zeros(shape).view(-1)}

    def prepare(self, vector: Tensor, context: Context) -> None:
        if self.clip:
            norm = vector.norm() * context.workers**0.5
            vector.mul_((self.clip / norm.clamp_min(torch.finfo(vector.dtype).tiny)).clamp_max(1.0))
        velocity = context.state["momentum"]
        velocity.mul_(self.momentum).add_(vector)
        vector.copy_(velocity)

    def encode(self, vector: Tensor, context: Context) -> Message:
        message = super().encode(vector, context)
        if "momentum" in context.state:
            context.state["momentum"].index_fill_(0, message[1].long(), 0.0)  # momentum factor masking
        return message


@dataclass(frozen=True, kw_only=True)
class Threshold(Sparse):
    """Send the elements whose magnitude reaches a bound, and their indices (Strom, 2015)."""

    bound: NotNegative = 0.001
    """The magnitude from which an element is sent; higher is fewer bytes and more error to feed back."""
    density: Ratio = 0.01
    """Fraction of the elements that is expected to reach the bound; predictions use it, since only data can tell."""
    varies: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        above = vector.abs() >= self.bound
        if vector.is_meta:  # only data can tell how many there are
            indices = torch.empty(kept(vector.numel(), self.density), dtype=torch.long, device="meta")
        else:
            indices = above.nonzero().view(-1)
        return self.message(vector, indices)


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """Send elements at indices that a shared seed decides anew in each round, so that they sum (Stich et al., 2018)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""
    sums: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:
        return (vector[self._indices(vector, context)],)

    def decode(self, message: Message, context: Context) -> Tensor:
        out = message[0].new_zeros(context.layout.elements)
        self.add(message, out, context)
        return out

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_lengths(message, kept(context.layout.elements, self.ratio))
        out.index_add_(0, self._indices(out, context), message[0], alpha=alpha)

    def _indices(self, vector: Tensor, context: Context) -> Tensor:
        count = context.layout.elements
        drawn = torch.empty(count, dtype=torch.long, device="meta")
        if not vector.is_meta:
            generator = torch.Generator().manual_seed(context.shared_seed)
            drawn = torch.randperm(count, generator=generator)
        return drawn[: kept(count, self.ratio)].to(vector.device)

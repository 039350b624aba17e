"""Codecs that send a few of the elements."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from paceline.codecs.base import Codec, RowCodec
from paceline.codecs.context import Context
from paceline.codecs.messages import CorruptMessage, Message, blank, check_message
from paceline.codecs.select import drawn, largest, reaching
from paceline.specs.ranges import Fraction, NotNegative, Ratio, at_least

MOST_INDEXED = 2**31


def count_sent(count: int, ratio: float) -> int:
    return min(count, max(1, round(ratio * count)))


@dataclass(frozen=True, kw_only=True)
class Sparse(RowCodec):
    """Elements and their indices; ranks choose different ones, so messages cannot be summed."""

    def message(self, vector: Tensor, indices: Tensor) -> Message:
        if vector.numel() > MOST_INDEXED:
            raise ValueError(
                f"a vector of {vector.numel():,} elements is too long to send indices; cut it to {MOST_INDEXED:,}"
            )
        return vector.gather(-1, indices), indices.to(torch.int32)

    def add_rows(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_message(message, *[self.sent(message, context)] * 2)
        values, indices = message
        _check_indices(indices, width := context.layout.elements)
        if len(out) > 1:  # rows lie one after the other
            starts = torch.arange(len(out), dtype=indices.dtype, device=out.device) * width
            indices = indices + starts[:, None]
        out.view(-1).index_add_(0, indices.reshape(-1), values.reshape(-1).to(out.dtype), alpha=alpha)

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:  # noqa: ARG002
        return {"indices": message[1], "values": message[0]}

    def sent(self, message: Message, context: Context) -> int:
        """The number of elements that are sent; the message may tell."""
        raise NotImplementedError


def _check_indices(indices: Tensor, elements: int) -> None:
    if indices.is_meta or not indices.numel():
        return
    ends = indices[:, 0].amin(), indices[:, -1].amax()
    if ends[0] < 0 or ends[1] >= elements or not (indices[:, 1:] > indices[:, :-1]).all():
        raise CorruptMessage(f"indices that do not ascend from 0 to the last of {elements:,} elements")


@dataclass(frozen=True, kw_only=True)
class TopK(Sparse):
    """Send the largest elements and their indices (Aji and Heafield, 2017)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""

    def encode_rows(self, rows: Tensor, context: Context) -> Message:  # noqa: ARG002
        return self.message(rows, largest(rows, count_sent(rows.shape[1], self.ratio)))

    def sent(self, message: Message, context: Context) -> int:  # noqa: ARG002
        return count_sent(context.layout.elements, self.ratio)


@dataclass(frozen=True, kw_only=True)
class DGC(TopK):
    """Top-k with momentum correction, clipping and a sparsity warm-up (deep gradient compression; Lin et al., 2018)."""

    ratio: Ratio = 0.001
    """Fraction of the elements that is sent after the warm-up."""
    momentum: Fraction = 0.9
    """Each rank's own momentum, which replaces the optimizer's."""
    clip: NotNegative = 0.0
    """Largest norm of a parameter's mean gradient, of which each of n ranks may have 1/sqrt(n); 0: no clipping."""
    warmup: Annotated[int, at_least(0)] = 0
    """Steps in which the ratio falls from 25 % to its value, each of its stages a fourth of the one before."""
    memory: Literal["error"] = "error"
    """error: what is not sent is kept; the momentum correction needs it."""
    has_momentum: ClassVar[bool] = True

    def at(self, round: int) -> "DGC":  # noqa: A002
        if round >= self.warmup:
            return self
        stages = 1
        while 0.25 ** (stages + 1) > self.ratio:
            stages += 1
        return replace(self, ratio=max(self.ratio, 0.25 ** (1 + round * stages // self.warmup)), warmup=0)

    def without_memory(self) -> Codec:
        """Top-k alone: momentum is of gradients."""
        return TopK(ratio=self.ratio, memory="none")

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {"momentum": torch.zeros(prod(shape))}

    def prepare(self, vector: Tensor, context: Context) -> None:
        if self.clip:
            most, offsets = self.clip * context.workers**-0.5, context.layout.offsets
            for start, stop in pairwise(offsets):
                part = vector[start:stop]
                part.mul_((most / part.norm()).clamp_max(1.0).nan_to_num(1.0))
        velocity = context.state["momentum"]
        velocity.mul_(self.momentum).add_(vector, alpha=1 / context.share)
        torch.mul(velocity, context.share, out=vector)

    def encode_rows(self, rows: Tensor, context: Context) -> Message:
        message = super().encode_rows(rows, context)
        if "momentum" in context.state:  # momentum factor masking
            context.state["momentum"].view(rows.shape).scatter_(1, message[1].long(), 0.0)
        return message

    def on_dense_send(self, context: Context) -> None:
        context.state["momentum"].zero_()


@dataclass(frozen=True, kw_only=True)
class Threshold(Sparse):
    """Send the elements whose magnitude reaches a bound, and their indices (Strom, 2015)."""

    bound: NotNegative = 0.001
    """The magnitude from which an element of a rank's gradient is sent; higher is fewer bytes and more error."""
    density: Ratio = 0.01
    """Fraction of the elements that is expected to reach the bound; predictions use it, since only data can tell."""
    varies: ClassVar[bool] = True
    example: ClassVar[Mapping[str, str]] = MappingProxyType({"bound": "50"})

    def encode(self, vector: Tensor, context: Context) -> Message:
        if not vector.is_meta:
            return self.message(vector, reaching(vector, self.bound * context.share))
        # Only data can tell how many there are.
        many = count_sent(vector.numel(), self.density)
        return self.message(vector, (vector.abs() >= self.bound)[:many].long())

    def sent(self, message: Message, context: Context) -> int:  # noqa: ARG002
        return message[0].numel() if message else 0


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """Send elements at indices that a shared seed decides anew in each round, so that they sum (Stich et al., 2018)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""
    sums: ClassVar[bool] = True
    example: ClassVar[Mapping[str, str]] = MappingProxyType({"ratio": "0.5"})

    def encode(self, vector: Tensor, context: Context) -> Message:
        return (vector.index_select(0, self._indices(vector, context)),)

    def decode(self, message: Message, context: Context) -> Tensor:
        out = blank(message, context)
        self.write(message, out, context)
        return out

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_message(message, count_sent(context.layout.elements, self.ratio))
        indices = self._indices(out, context)
        out.index_add_(0, indices, message[0].to(out.dtype), alpha=alpha)

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:
        return {"indices": self._indices(message[0], context), "values": message[0]}

    def _indices(self, vector: Tensor, context: Context) -> Tensor:
        length = context.layout.elements
        if vector.is_meta:
            return torch.randint(max(1, length), (count_sent(length, self.ratio),), device="meta")
        return drawn(context.shared_seed, length, count_sent(length, self.ratio)).to(vector.device)

"""Codecs that send fewer bits a number."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import Codec, Context, CorruptMessage, Message, check_lengths
from paceline.specs.ranges import Range, from_1_to

BITS = 8
FROM_2_TO_8 = Range("from 2 to 8", lambda value: 2 <= value <= BITS)


@dataclass(frozen=True, kw_only=True)
class Half(Codec):
    """Send every element as a 16-bit float."""

    format: Literal["bf16", "fp16"] = "bf16"
    """bf16 has the range of 32 bits and 8 bits of precision; fp16 has 11 bits and overflows above 65,504."""
    memory: Literal["error", "none"] = "none"
    """error: what a message leaves out is added to the next one (error feedback). none: it is lost."""
    sums: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        return (vector.to(torch.bfloat16 if self.format == "bf16" else torch.float16),)

    def decode(self, message: Message, context: Context) -> Tensor:
        check_lengths(message, context.layout.elements)
        return message[0].float()

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_lengths(message, context.layout.elements)
        out.add_(message[0], alpha=alpha)


@dataclass(frozen=True, kw_only=True)
class Int8(Codec):
    """Round elements at random to levels of their block's largest, unbiased (QSGD; Alistarh et al., 2017)."""

    bits: Annotated[int, FROM_2_TO_8] = 8
    """Bits an element; fewer are fewer bytes and more noise."""
    block: Annotated[int, from_1_to(2**24)] = 2048
    """Elements that share a scale; fewer follow the gradient more closely and send more scales."""
    memory: Literal["error", "none"] = "none"
    """error: what a message leaves out is added to the next one (error feedback). none: it is lost."""
    requantises: ClassVar[bool] = True

    @property
    def levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def encode(self, vector: Tensor, context: Context) -> Message:
        blocks = pad(vector, (0, -vector.numel() % self.block)).view(-1, self.block)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        # Divided first: the number of levels over a small scale may be more than the format holds.
        scaled = (blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)).mul_(self.levels)
        rounded = scaled.add_(_noise(scaled, context.own_seed)).floor_().clamp_(-self.levels, self.levels)
        return scales.view(-1), self._pack(rounded.to(torch.int8).view(-1)[: vector.numel()])

    def decode(self, message: Message, context: Context) -> Tensor:
        count = context.layout.elements
        check_lengths(message, -(-count // self.block), -(-count * self.bits // BITS))
        scales, packed = message
        if not scales.is_meta and not scales.isfinite().all():
            raise CorruptMessage("a message with a scale that is not finite")
        levels = self._unpack(packed, count)
        blocks = pad(levels, (0, -count % self.block)).view(-1, self.block)
        values = blocks.to(scales.dtype) * (scales.view(-1, 1) / self.levels)
        return values.view(-1)[:count]

    def _pack(self, levels: Tensor) -> Tensor:
        if self.bits == BITS:
            return levels
        words = pad(levels.long() & (2**self.bits - 1), (0, -levels.numel() % BITS)).view(-1, BITS)
        shifts = torch.arange(BITS, device=levels.device) * self.bits
        together = (words << shifts).sum(dim=1).view(-1, 1).view(torch.int8)[:, : self.bits]
        return together.reshape(-1)[: -(-levels.numel() * self.bits // BITS)]

    def _unpack(self, packed: Tensor, count: int) -> Tensor:
        if self.bits == BITS:
            return packed
        groups = pad(packed, (0, -packed.numel() % self.bits)).view(-1, self.bits)
        words = pad(groups, (0, BITS - self.bits)).contiguous().view(torch.int64)
        shifts = torch.arange(BITS, device=packed.device) * self.bits
        raw = (words >> shifts) & (2**self.bits - 1)
        return ((raw ^ 2 ** (self.bits - 1)) - 2 ** (self.bits - 1)).to(torch.int8).view(-1)[:count]


def _noise(like: Tensor, seed: int) -> Tensor:
    """Uniform in [0, 1), from a generator of its own, so that no other random number changes."""
    if like.device.type != "cpu":
        device = like.device
        if like.is_meta:
            return torch.rand(like.shape, device=device)
        return torch.rand(like.shape, generator=torch.Generator(device).manual_seed(seed), device=device)
    bits = np.random.Generator(np.random.SFC64(seed)).integers(2**16, size=like.numel(), dtype=np.uint16)
    return torch.from_numpy(bits.astype(np.float32)).view(like.shape).div_(2**16)


@dataclass(frozen=True, kw_only=True)
class Sign(Codec):
    """Send one bit an element, and the mean size of all (scaled signSGD; Karimireddy et al., 2019)."""

    requantises: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        bits = pad((vector >= 0).to(torch.uint8), (0, -vector.numel() % BITS)).view(-1, BITS)
        packed = bits << torch.arange(BITS, dtype=torch.uint8, device=vector.device)
        mean = vector.abs().sum().div(max(1, vector.numel()))
        return mean.view(1), packed.sum(dim=1, dtype=torch.uint8)

    def decode(self, message: Message, context: Context) -> Tensor:
        count = context.layout.elements
        check_lengths(message, 1, -(-count // BITS))
        mean, packed = message
        if not mean.is_meta and not mean.isfinite().all():
            raise CorruptMessage("a message whose mean is not finite")
        bits = (packed.view(-1, 1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
        return bits.view(-1)[:count].to(mean.dtype).mul_(2).sub_(1).mul_(mean)

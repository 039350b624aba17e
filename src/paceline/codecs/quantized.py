"""Codecs that send every number with fewer bits: a signed byte, or its sign."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import Message, elements

LEVELS = 127
BITS = 8


@dataclass(frozen=True, kw_only=True)
class Int8:
    """Round numbers at random to 127 levels of their block's largest, unbiased (QSGD; Alistarh et al., 2017)."""

    block: int = 2048
    """Numbers that share a scale; fewer follow the gradient more closely and send more scales."""

    def __post_init__(self) -> None:
        if not 1 <= self.block <= 2**24:
            raise ValueError(f"block={self.block} is out of range; it must lie between 1 and {2**24}")

    @property
    def sums(self) -> bool:
        """Blocks of different workers have different scales."""
        return False

    def encode(self, tensor: Tensor) -> Message:
        """A scale a block, and a signed byte a number."""
        flat = tensor.reshape(-1)
        blocks = pad(flat, (0, -flat.numel() % self.block)).view(-1, self.block)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        # Divided first: the number of levels over a small scale may be more than the format holds.
        levels = (blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)).mul_(LEVELS)
        rounded = torch.floor(levels + torch.rand_like(levels)).clamp_(-LEVELS, LEVELS)
        return scales.view(-1), rounded.to(torch.int8).view(-1)[: flat.numel()]

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        scales, levels = message
        blocks = pad(levels, (0, -levels.numel() % self.block)).view(-1, self.block)
        values = blocks.to(scales.dtype) * (scales.view(-1, 1) / LEVELS)
        return values.view(-1)[: prod(shape)].reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        count = elements(shapes)
        return count + -(-count // self.block) * element


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Send one bit a number, and the mean size of all (scaled signSGD; Karimireddy et al., 2019)."""

    @property
    def sums(self) -> bool:
        return False

    def encode(self, tensor: Tensor) -> Message:
        """The mean of the absolute values, and the signs eight to a byte."""
        flat = tensor.reshape(-1)
        bits = pad((flat >= 0).to(torch.uint8), (0, -flat.numel() % BITS)).view(-1, BITS)
        packed = (bits << torch.arange(BITS, dtype=torch.uint8, device=flat.device)).sum(
            dim=1, dtype=torch.uint8
        )
        return flat.abs().mean().view(1), packed

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        """Plus or minus the mean."""
        mean, packed = message
        bits = (packed.view(-1, 1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
        signs = bits.view(-1)[: prod(shape)].to(mean.dtype).mul_(2).sub_(1)
        return (signs * mean).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return -(-elements(shapes) // BITS) + element

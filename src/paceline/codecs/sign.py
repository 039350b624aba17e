from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import Message, elements

BITS = 8


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Send one bit a number, and the mean size of all (scaled signSGD; Karimireddy et al., 2019)."""

    @property
    def sums(self) -> bool:
        """Bits do not add."""
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
        """An eighth of a byte a number, and the mean."""
        return -(-elements(shapes) // BITS) + element

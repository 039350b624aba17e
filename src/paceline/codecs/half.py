from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.codecs.base import Message, elements


@dataclass(frozen=True, kw_only=True)
class Half:
    """Send every number in 16 bits."""

    format: str = "bf16"
    """bf16 has the range of 32 bits and 8 bits of precision; fp16 has 11 bits and overflows above 65,504."""

    def __post_init__(self) -> None:
        if self.format not in ("bf16", "fp16"):
            raise ValueError(f"format={self.format} is unknown; choose bf16 or fp16")

    @property
    def sums(self) -> Literal[True]:
        """Numbers of 16 bits add, with their own rounding."""
        return True

    def encode(self, tensor: Tensor) -> Message:
        """Round."""
        return (tensor.to(torch.bfloat16 if self.format == "bf16" else torch.float16),)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        """Back to 32 bits."""
        return message[0].to(torch.float32).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:  # noqa: ARG002
        """Two a number."""
        return 2 * elements(shapes)

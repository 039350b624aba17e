"""What a codec is: from a tensor to a message of tensors, and back. And the two that keep every number."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

Message = tuple[Tensor, ...]
"""What is sent: its bytes are those of its tensors."""


class Codec(Protocol):
    """A way to send a gradient with fewer bytes. A frozen, keyword-only dataclass; its fields are its settings."""

    @property
    def sums(self) -> bool:
        """Whether messages may be added on the way, by an all-reduce; else every rank gets the messages of all."""

    def encode(self, tensor: Tensor) -> Message:
        """The message that stands for a tensor, which is left as it is."""

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        """A new tensor of that shape, near to what was encoded."""

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        """Bytes of the messages of tensors of these shapes, whose numbers have ``element`` bytes."""


def elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(prod(shape) for shape in shapes)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Send every number as it is."""

    @property
    def sums(self) -> bool:
        return True

    def encode(self, tensor: Tensor) -> Message:
        return (tensor,)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return message[0].reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return elements(shapes) * element


@dataclass(frozen=True, kw_only=True)
class Half:
    """Send every number in 16 bits."""

    format: str = "bf16"
    """bf16 has the range of 32 bits and 8 bits of precision; fp16 has 11 bits and overflows above 65,504."""

    def __post_init__(self) -> None:
        if self.format not in ("bf16", "fp16"):
            raise ValueError(f"format={self.format} is unknown; choose bf16 or fp16")

    @property
    def sums(self) -> bool:
        """Numbers of 16 bits add, with their own rounding."""
        return True

    def encode(self, tensor: Tensor) -> Message:
        return (tensor.to(torch.bfloat16 if self.format == "bf16" else torch.float16),)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return message[0].to(torch.float32).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:  # noqa: ARG002
        return 2 * elements(shapes)

"""What a codec is: from a tensor to a message of tensors, and back. And the one that changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol

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

    sums: ClassVar[bool] = True

    def encode(self, tensor: Tensor) -> Message:
        return (tensor,)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return message[0].reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return elements(shapes) * element

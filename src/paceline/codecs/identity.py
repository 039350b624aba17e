from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.codecs.base import Message, elements


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Send every number as it is."""

    @property
    def sums(self) -> bool:
        """Numbers add."""
        return True

    def encode(self, tensor: Tensor) -> Message:
        """The tensor itself."""
        return (tensor,)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        """The same numbers."""
        return message[0].reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        """All of them."""
        return elements(shapes) * element

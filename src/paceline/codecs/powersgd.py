"""A codec that sends matrices as products of thin ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from paceline.codecs.base import Message


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Send a matrix as the product of two thin ones, by one step of power iteration (Vogels et al., 2019)."""

    rank: int = 4
    """Columns of the thin matrices; fewer are fewer bytes and more error to feed back."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= 4096:
            raise ValueError(f"rank={self.rank} is out of range; it must lie between 1 and 4096")

    @property
    def sums(self) -> bool:
        """Thin matrices of all workers add: first P, then Q."""
        return True

    def encode(self, tensor: Tensor) -> Message:
        """P and Q of a matrix; what has one dimension, or would not become smaller, is sent as it is."""
        if not self._is_thinner(tensor.shape):
            return (tensor,)
        matrix = tensor.reshape(tensor.shape[0], -1)
        start = torch.randn(matrix.shape[1], self.rank, dtype=matrix.dtype, device=matrix.device)
        left = _orthogonal(matrix @ start)
        return left, matrix.T @ left

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        if len(message) == 1:
            return message[0].reshape(tuple(shape))
        left, right = message
        return (left @ right.T).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return element * sum(
            self.rank * (shape[0] + prod(shape[1:])) if self._is_thinner(shape) else prod(shape)
            for shape in shapes
        )

    def _is_thinner(self, shape: Sequence[int]) -> bool:
        if len(shape) < 2:
            return False
        height, width = shape[0], prod(shape[1:])
        return self.rank < min(height, width) and self.rank * (height + width) < height * width


def _orthogonal(columns: Tensor) -> Tensor:
    """Gram and Schmidt, each column against all before it at once; twice, which is as good as one by one."""
    made = columns.clone()
    for place, column in enumerate(made.unbind(dim=1)):
        before = made[:, :place]
        for _ in range(2 if place else 0):
            column.sub_(before @ (before.T @ column))
        column.div_(column.norm().clamp_min(torch.finfo(column.dtype).tiny))
    return made

"""What a process group needs of those it joins: the ranks of one host, or of several."""

from collections.abc import Sequence
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from paceline.shm.operations import InvalidCall
from paceline.shm.peers import PeerLost


class Party(Protocol):
    """Collectives on contiguous CPU tensors. All ranks make the same calls in the same order, one at a time."""

    rank: int
    size: int

    @property
    def teams(self) -> list[int]:
        """How many ranks share memory, team by team."""

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Make every rank's tensor the combination of all."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Make every rank's tensor that of the root."""

    def reduce(self, tensor: Tensor, root: int, op: str = "sum") -> None:
        """Make the root's tensor the combination of all."""

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        """Fill ``outputs`` with every rank's tensor."""

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
        """The same, on the root only."""

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: str = "sum") -> None:
        """Combine everybody's ``inputs[r]`` for rank r."""

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """Give the root's ``inputs[r]`` to rank r."""

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Give ``inputs[r]`` to rank r and get its part in ``outputs[r]``."""

    def barrier(self) -> None:
        """Return when all have come here."""

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in shared memory."""

    def refuse(self, problem: InvalidCall) -> NoReturn:
        """Take part in the next call, whatever the others ask for, only to say that this rank cannot: all raise."""

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Return when the tensor has left. Several threads may send, each to another rank."""

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Return when the tensor is filled. Several threads may receive, each from another rank."""

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Return when the tensor is filled with a message of anybody, and say whose it was."""

    def explain(self, error: PeerLost) -> PeerLost:
        """The same, or a better one if other hosts know more; tells them what is known here."""

    def close(self) -> None:
        """Leave."""

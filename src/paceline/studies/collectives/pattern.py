"""Known inputs and the result that they must give, exactly, whatever the order in which they are combined."""

import torch
from torch import Tensor

from paceline.shm.operations import Operation

PERIOD = 8191
"""Elements until the values repeat; a prime, so that no chunk begins where another does."""


class Pattern:
    """What each rank begins with and what all must end with; small whole numbers, so that sums are exact."""

    def __init__(self, operation: Operation, dtype: torch.dtype, rank: int, workers: int) -> None:
        self._mine = _values(operation, rank, dtype)
        self._expected = _values(operation, 0, dtype)
        for other in range(1, workers):
            operation.combine(self._expected, _values(operation, other, dtype))
        operation.finish(self._expected, workers)

    def lay(self, tensor: Tensor) -> None:
        """Make the tensor this rank's input."""
        body, rest = _blocks(tensor)
        body.copy_(self._mine.expand_as(body))
        rest.copy_(self._mine[: len(rest)])

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is the result, element by element."""
        body, rest = _blocks(tensor)
        return bool((body == self._expected).all()) and torch.equal(rest, self._expected[: len(rest)])


def _values(operation: Operation, rank: int, dtype: torch.dtype) -> Tensor:
    drawn = torch.randint(0, 5, (PERIOD,), generator=torch.Generator().manual_seed(rank))
    return (1 + drawn // 4 if operation.name == "product" else drawn).to(dtype)


def _blocks(tensor: Tensor) -> tuple[Tensor, Tensor]:
    whole = len(tensor) // PERIOD * PERIOD
    return tensor[:whole].view(-1, PERIOD), tensor[whole:]

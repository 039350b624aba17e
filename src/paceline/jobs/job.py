"""What is trained: a model, a loss, data, an optimizer and a schedule."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn, optim

Batch = tuple[Tensor, Tensor]


class Data(Protocol):
    """Samples that can be taken by index, a whole batch at a time."""

    def __len__(self) -> int:
        """How many samples there are."""

    def take(self, indices: Tensor) -> Batch:
        """The inputs and targets of these samples."""


def constant(epoch: float) -> float:  # noqa: ARG001
    """The learning rate stays as it is."""
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one training needs, however many workers share it.

    The functions are called once a worker, in its own process; they must build the same thing each time.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) to the mean loss of the batch."""
    train: Data
    test: Data
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer]
    schedule: Callable[[float], float] = constant
    """Epoch, with its fraction, to a factor on the learning rate."""
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    """Name to a function (outputs, targets) to the sum over the batch; a target refers to "accuracy"."""

"""What a prediction is about: a model, its loss and the look of a batch, without weights and without data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn, optim

from paceline.jobs.job import Batch


@dataclass(frozen=True, kw_only=True)
class Subject:
    """All that a trace needs. Its functions are called under ``torch.device("meta")``, or a real one to be timed."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) to the mean loss of the batch."""
    batch: Callable[[int], Batch]
    """Inputs and targets of so many samples, on the device that is the default when it is called.

    What they hold does not matter, but targets and tokens are in range, so that the model also runs on them.
    """
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer]
    train_samples: int | None = None
    """Samples of an epoch, where the subject knows them."""

"""What a prediction is about: a model, its loss and the look of a batch, without weights and without data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn, optim

from paceline.jobs.batches import Batch


@dataclass(frozen=True, kw_only=True)
class Subject:
    """All that a trace needs. Its functions are called under ``torch.device("meta")``, or a real one to be timed."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] | None = None
    """(outputs, targets) to the mean loss of the batch; None where the model returns its loss."""
    compute_loss: Callable[[nn.Module, Batch], Tensor] | None = None
    """(model, batch) to the mean loss of the batch, instead."""
    batch: Callable[[int], Batch]
    """A batch of so many samples, such as (inputs, targets), on the device that is the default when it is called.

    What they hold does not matter, but targets and tokens are in range, so that the model also runs on them.
    """
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer]
    train_samples: int | None = None
    """Samples of an epoch, where the subject knows them."""
    accumulate: int = 1
    """Mini-batches whose gradients are added up before a step of the optimizer."""
    clip_norm: float | None = None
    """The norm to which gradients are clipped."""
    precision: str = "fp32"
    """In which forward is computed."""

"""What is trained: a model, a loss, data, an optimizer and a schedule."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn, optim

from paceline.errors import UsageError
from paceline.jobs.batches import Batch, batch_like
from paceline.jobs.schedules import Constant

PRECISIONS = ("fp32", "bf16")


class Data(Protocol):
    """Samples that can be taken by index, a whole batch at a time."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class StepDefinition:
    """What one worker computes in a step. The functions must build the same thing each time they are called."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] | None = None
    """(outputs, targets) to the mean loss of the batch; None where the model returns its loss."""
    test_loss: Callable[[Any, Any], Tensor] | None = None
    """As ``loss``, of test data; None is ``loss`` itself. Regularized training is compared by the plain one."""
    compute_loss: Callable[[nn.Module, Batch], Tensor] | None = None
    """(model, batch) to the mean loss of the batch, instead of ``loss``: for batches that are not (inputs, targets)."""
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer]
    accumulate: int = 1
    """Mini-batches whose gradients are added up before each step of the optimizer; more needs no more memory."""
    clip_norm: float | None = None
    """The gradient is scaled down to this norm wherever an optimizer steps; smaller clips more."""
    precision: str = "fp32"
    """Of forward and loss: fp32, or bf16 under torch.autocast; the parameters stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Traceable(StepDefinition):
    """A step that can be traced without data. Called under ``torch.device("meta")``, or a real one to be timed."""

    batch: Callable[[int], Batch]
    """A batch of this many samples, such as (inputs, targets), on the device that is the default when it is called.

    What they hold does not matter, but targets and tokens are in range, so that the model also runs on them.
    """
    train_samples: int | None = None
    assumed: Callable[[], str] = str
    """After a trace: what was assumed of the step, for people; empty for nothing."""


@dataclass(frozen=True, kw_only=True)
class Job(StepDefinition):
    """Everything that one training needs, however many workers share it; its functions are called in each worker."""

    train: Data
    test: Data | None = None
    collate: Callable[[list[Any]], Batch] | None = None
    """Samples to a batch, as torch's loader has it; None is its ``default_collate``."""
    loader_workers: int = 0
    """Processes of each worker that prepare batches ahead of time; they change no result."""
    schedule: Callable[[float], float] = Constant()
    """Epoch, with its fraction, to a factor on the learning rate."""
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] = field(default_factory=dict)
    """Name to a function (outputs, targets) to the sum over the batch; a target refers to "accuracy".

    Where a batch has no last element that is the target, the function gets the whole batch instead.
    """

    def batch(self, samples: int) -> Batch:
        return batch_like(self.train.take, samples)

    @property
    def train_samples(self) -> int:
        return len(self.train)

    @property
    def step(self) -> str:
        """What a step is made of beside its mini-batch, for people, as it follows the batch size."""
        times = f" x {self.accumulate} accumulated" if self.accumulate > 1 else ""
        clipped = f", clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        return times + clipped + (f", {self.precision}" if self.precision != "fp32" else "")

    def __post_init__(self) -> None:
        for name, least in (("accumulate", 1), ("loader_workers", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(
                    f"{name}={value!r} is out of range: it must be a whole number of at least {least}"
                )
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise UsageError(
                f"clip_norm={self.clip_norm:g} is out of range: it must be more than 0, for example 1.0"
            )
        if self.precision not in PRECISIONS:
            fp16 = " (fp16 needs loss scaling)" if self.precision == "fp16" else ""
            raise UsageError(
                f"precision={self.precision!r} is not supported{fp16}; choose {' or '.join(PRECISIONS)}"
            )
        if self.test is None and self.metrics:
            raise UsageError(
                f"the metric {next(iter(self.metrics))!r} is computed on test data, and there is none; add test=..., "
                "or leave the metrics out"
            )

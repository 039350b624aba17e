"""Learning-rate schedules: pure functions of the fractional epoch to a factor on the rate, and what scales them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import cos, pi, sqrt
from typing import Annotated, Literal, Self

from paceline.jobs.spec import Epochs
from paceline.specs.ranges import Fraction, NotNegative, Positive, Range, RangeChecked

_UpToOne = Annotated[float, Range("at least 0 and at most 1", lambda value: 0 <= value <= 1)]
UNSCALED_START = 0.1
"""Where warm-up starts by itself, unless the rate is scaled."""


@dataclass(frozen=True, kw_only=True)
class Warmup(RangeChecked):
    """Every schedule may begin with a warm-up (Goyal et al., 2017): a straight line to 1, or a low rate until then."""

    warmup: NotNegative = 0.0
    """Epochs of warm-up; more is safer for large batches."""
    warmup_from: _UpToOne | Literal["auto"] = "auto"
    """The factor at the start of the warm-up; auto is 0.1, or 1/k where the rate is scaled by k: the unscaled one."""
    warmup_kind: Literal["gradual", "constant"] = "gradual"
    """A straight line to the full rate, or the low rate for all of the warm-up and then the full one."""

    def __call__(self, epoch: float) -> float:
        if epoch >= self.warmup:
            return self.after(epoch)
        start = UNSCALED_START if self.warmup_from == "auto" else self.warmup_from
        risen = epoch / self.warmup if self.warmup_kind == "gradual" else 0.0
        return self.after(epoch) * (start + (1 - start) * risen)

    def started_at(self, start: float) -> Self:
        """With this factor at the start of the warm-up, unless another was set."""
        return replace(self, warmup_from=min(start, 1.0)) if self.warmup_from == "auto" else self

    def after(self, epoch: float) -> float:  # noqa: ARG002
        """The factor without the warm-up."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Constant(Warmup):
    """The learning rate stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Cosine(Warmup):
    """Half a cosine from 1 to 0 (Loshchilov and Hutter, 2017)."""

    epochs: Positive = 30.0
    """Epochs until the end; the factor stays there afterwards, so give as many as you train."""
    floor: Fraction = 0.0
    """The factor at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup >= self.epochs:
            raise ValueError(
                f"warmup={self.warmup:g} is too long; it must be less than epochs={self.epochs:g}"
            )

    def after(self, epoch: float) -> float:
        done = min(epoch / self.epochs, 1.0)
        return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True, kw_only=True)
class StepDecay(Warmup):
    """Drop by a factor at each of some epochs."""

    at: Epochs = Epochs((30, 60, 80))
    """The epochs, joined by "+"."""
    gamma: Positive = 0.1
    """The factor of each drop; less drops more."""

    def after(self, epoch: float) -> float:
        return self.gamma ** sum(epoch >= date for date in self.at)


@dataclass(frozen=True)
class Held:
    """A billionth of the rate: the parameters stay as they are, so that runs compute on the same values.

    For timing: a max-pool takes longer on some values than on others, and so would a run that has learned otherwise.
    """

    def __call__(self, epoch: float) -> float:  # noqa: ARG002
        return 1e-9


SCALINGS: dict[str, Callable[[float], float]] = {"none": lambda _: 1.0, "linear": float, "sqrt": sqrt}
"""How the learning rate grows with the batch: by k, or by its square root, for a batch of k reference batches."""


@dataclass(frozen=True)
class ScaledSchedule:
    """The schedule of a rate that is multiplied by a factor; a warm-up of ours begins at the rate without it."""

    unscaled: Callable[[float], float]
    factor: float

    def __call__(self, epoch: float) -> float:
        return self.factor * self._begun(epoch)

    @cached_property
    def _begun(self) -> Callable[[float], float]:
        unscaled = self.unscaled
        return unscaled.started_at(1 / self.factor) if isinstance(unscaled, Warmup) else unscaled


def scale_schedule(schedule: Callable[[float], float], factor: float) -> ScaledSchedule:
    """Of a schedule that is scaled already, the factor is replaced."""
    return ScaledSchedule(schedule.unscaled if isinstance(schedule, ScaledSchedule) else schedule, factor)

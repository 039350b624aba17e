"""Learning-rate schedules: pure functions of the fractional epoch to a factor on the learning rate."""

from dataclasses import dataclass
from math import cos, pi
from typing import Self

from paceline.errors import UsageError
from paceline.jobs.spec import at_least, fraction, more_than


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Every schedule may begin with a gradual warm-up (Goyal et al., 2017), a straight line to 1."""

    warmup: float = 0.0
    """Epochs of gradual warm-up; more is safer for large batches."""

    warmup_from: float = 0.1
    """The factor at the start of the warm-up; 1/k when the rate was scaled by k."""

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup)
        fraction(warmup_from=self.warmup_from)

    def __call__(self, epoch: float) -> float:
        if epoch >= self.warmup:
            return self.after(epoch)
        return self.after(epoch) * (self.warmup_from + (1 - self.warmup_from) * epoch / self.warmup)

    def after(self, epoch: float) -> float:  # noqa: ARG002
        """The factor without the warm-up."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Constant(Warmup):
    """The learning rate stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Cosine(Warmup):
    """Half a cosine from 1 to 0 (Loshchilov and Hutter, 2017)."""

    epochs: float = 30.0
    """Epochs until the end; the factor stays there afterwards, so give as many as you train."""

    floor: float = 0.0
    """The factor at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        more_than(0, epochs=self.epochs)
        fraction(floor=self.floor)
        if self.warmup >= self.epochs:
            raise ValueError(
                f"warmup={self.warmup:g} is too long; it must be less than epochs={self.epochs:g}"
            )

    def after(self, epoch: float) -> float:
        """The factor without the warm-up."""
        done = min(epoch / self.epochs, 1.0)
        return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2


class Epochs(tuple[float, ...]):
    """Epochs at which something happens; "30+60+80" as text."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            epochs = cls(float(part) for part in text.split("+"))
        except ValueError:
            raise UsageError(f"{text!r} is not a list of epochs: write them as in 30+60+80") from None
        if list(epochs) != sorted(set(epochs)) or not 0 < epochs[0] <= epochs[-1] < float("inf"):
            raise UsageError(
                f"{text!r} is not a list of epochs: they must be more than 0 and rise, as in 30+60+80"
            )
        return epochs

    def __str__(self) -> str:
        return "+".join(f"{epoch:g}" for epoch in self)


@dataclass(frozen=True, kw_only=True)
class StepDecay(Warmup):
    """Drop by a factor at each of some epochs."""

    at: Epochs = Epochs((30, 60, 80))
    """The epochs, joined by "+"."""

    gamma: float = 0.1
    """The factor of each drop; less drops more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        more_than(0, gamma=self.gamma)

    def after(self, epoch: float) -> float:
        """The factor without the warm-up."""
        return self.gamma ** sum(epoch >= date for date in self.at)

"""The optimizers and learning-rate schedules that ship.

An optimizer is called with a model's parameters and makes torch's own, of its fused kind: one pass over the memory,
which on a CPU takes about half the time. A schedule is a pure function of the fractional epoch to a factor on the
learning rate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar

from torch import Tensor, nn, optim

from paceline.jobs.spec import Epochs
from paceline.specs.ranges import Fraction, NotNegative, Positive, RangeChecked

ELEMENTWISE: frozenset[type[optim.Optimizer]] = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad, optim.Adamax}
)
"""Optimizers that treat every element alike: one call on the whole vector does what a call a parameter would do."""


def takes_vector(optimizer: optim.Optimizer, parameters: int) -> bool:
    """Whether an optimizer treats every element alike and holds all ``parameters`` tensors of the model."""
    first, *others = optimizer.param_groups
    return type(optimizer) in ELEMENTWISE and not others and len(first["params"]) == parameters


def has_momentum(optimizer: optim.Optimizer) -> bool:
    """By the names that torch's optimizers give it; the first of Adam's betas is one."""
    return any(group.get("momentum") or group.get("betas", (0.0,))[0] for group in optimizer.param_groups)


def clip_norm_(grad: Tensor, most: float | None) -> None:
    """Scale a flat gradient, or each row of a matrix, down to this norm, as torch's ``clip_grad_norm_`` does.

    None leaves it alone.
    """
    if most is not None:
        grad.mul_((most / (grad.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0))


@dataclass(frozen=True, kw_only=True)
class Sgd(RangeChecked):
    """Stochastic gradient descent with momentum."""

    lr: Positive = 0.05
    """The learning rate, before the schedule's factor; higher is faster until it diverges."""
    momentum: Fraction = 0.9
    """How much of the last update goes on; 0 is plain SGD."""
    nesterov: bool = False
    """Look ahead along the momentum."""
    weight_decay: NotNegative = 0.001
    """Pull of the weights towards zero; more means smaller weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov=true needs momentum, which is 0; set momentum=0.9 or leave nesterov out"
            )

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, **vars(self), fused=True)


@dataclass(frozen=True, kw_only=True)
class Adam(RangeChecked):
    """Adam (Kingma and Ba, 2015)."""

    lr: Positive = 0.001
    """The learning rate, before the schedule's factor; higher is faster until it diverges."""
    beta1: Fraction = 0.9
    """Memory of the mean gradient; closer to 1 is longer."""
    beta2: Fraction = 0.999
    """Memory of the squared gradient; closer to 1 is longer."""
    eps: Positive = 1e-8
    """Keeps the division finite; more makes it more like SGD."""
    weight_decay: NotNegative = 0.0
    """Pull of the weights towards zero, as part of the gradient."""
    kind: ClassVar[type[optim.Adam]] = optim.Adam

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return self.kind(
            parameters, lr=self.lr, betas=betas, eps=self.eps, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with the weight decay apart from the gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: NotNegative = 0.01
    """Pull of the weights towards zero, times the learning rate."""
    kind: ClassVar[type[optim.Adam]] = optim.AdamW


@dataclass(frozen=True, kw_only=True)
class Warmup(RangeChecked):
    """Every schedule may begin with a gradual warm-up (Goyal et al., 2017), a straight line to 1."""

    warmup: NotNegative = 0.0
    """Epochs of gradual warm-up; more is safer for large batches."""
    warmup_from: Fraction = 0.1
    """The factor at the start of the warm-up; 1/k when the rate was scaled by k."""

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

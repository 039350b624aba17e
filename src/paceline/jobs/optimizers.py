"""The optimizers that ship; each is called with a model's parameters and makes torch's own.

They are torch's fused kind: one pass over the memory, which on a CPU takes about half the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn, optim

from paceline.jobs.spec import at_least, fraction, more_than

ELEMENTWISE: frozenset[type[optim.Optimizer]] = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad, optim.Adamax}
)
"""Optimizers that treat every element alike: one call on the whole vector does what a call a parameter would do."""


def clip_norm_(grad: Tensor, most: float | None) -> None:
    """Scale a flat gradient down to this norm, as torch's ``clip_grad_norm_`` does; None leaves it alone."""
    if most is not None:
        grad.mul_((most / (grad.norm() + 1e-6)).clamp(max=1.0))


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with momentum."""

    lr: float = 0.05
    """The learning rate, before the schedule's factor; higher is faster until it diverges."""

    momentum: float = 0.9
    """How much of the last update goes on; 0 is plain SGD."""

    nesterov: bool = False
    """Look ahead along the momentum."""

    weight_decay: float = 0.001
    """Pull of the weights towards zero; more means smaller weights."""

    def __post_init__(self) -> None:
        more_than(0, lr=self.lr)
        fraction(momentum=self.momentum)
        at_least(0, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov=true needs momentum, which is 0; set momentum=0.9 or leave nesterov out"
            )

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015)."""

    lr: float = 0.001
    """The learning rate, before the schedule's factor; higher is faster until it diverges."""

    beta1: float = 0.9
    """Memory of the mean gradient; closer to 1 is longer."""

    beta2: float = 0.999
    """Memory of the squared gradient; closer to 1 is longer."""

    eps: float = 1e-8
    """Keeps the division finite; more makes it more like SGD."""

    weight_decay: float = 0.0
    """Pull of the weights towards zero, as part of the gradient."""

    kind: ClassVar[type[optim.Adam]] = optim.Adam

    def __post_init__(self) -> None:
        more_than(0, lr=self.lr, eps=self.eps)
        fraction(beta1=self.beta1, beta2=self.beta2)
        at_least(0, weight_decay=self.weight_decay)

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return self.kind(
            parameters, lr=self.lr, betas=betas, eps=self.eps, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with the weight decay apart from the gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01
    """Pull of the weights towards zero, times the learning rate."""

    kind: ClassVar[type[optim.Adam]] = optim.AdamW

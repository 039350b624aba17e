"""The optimizers that ship.

An optimizer is called with a model's parameters and makes torch's own, of its fused kind: one pass over the memory,
which on a CPU takes about half the time; or one of ``layerwise.py``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature, unwrap
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn, optim

from paceline.jobs.layerwise import LAMB, LARS
from paceline.specs.ranges import Fraction, NotNegative, Positive, RangeChecked

ELEMENTWISE: frozenset[type[optim.Optimizer]] = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad, optim.Adamax}
)
"""Optimizers that treat every element alike: one call on the whole vector does what a call a parameter would do."""


def takes_vector(optimizer: optim.Optimizer, parameters: int) -> bool:
    """Whether an optimizer treats every element alike and holds all ``parameters`` tensors of the model."""
    first, *others = optimizer.param_groups
    return type(optimizer) in ELEMENTWISE and not others and len(first["params"]) == parameters


def plain_step(optimizer: optim.Optimizer) -> Callable[[], object]:
    """The optimizer's step without torch's wrappers for hooks, profilers and the compiler, where no hook is set.

    They cost several times what a small model's step itself does, and import the compiler, which takes a second.
    """
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    known = type(optimizer) in {*ELEMENTWISE, LARS, LAMB}
    if not known or optimizer.defaults.get("differentiable") or hooks:
        return optimizer.step
    return torch.no_grad()(partial(unwrap(type(optimizer).step), optimizer))


def constructor_settings(kind: type[optim.Optimizer], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What makes an optimizer with the defaults of another: some keep more than their constructor takes, as AdamW does.

    A constructor that passes its keywords on takes what its base does.
    """
    known: set[str] = set()
    for one in kind.__mro__:
        if "__init__" in vars(one):
            taken = signature(vars(one)["__init__"]).parameters.values()
            known |= {parameter.name for parameter in taken}
            if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in taken):
                break
    return {name: value for name, value in defaults.items() if name in known}


def has_momentum(optimizer: optim.Optimizer) -> bool:
    """By the names that torch's optimizers give it; the first of Adam's betas is one."""
    return any(group.get("momentum") or group.get("betas", (0.0,))[0] for group in optimizer.param_groups)


def keeps_state(optimizer: optim.Optimizer) -> bool:
    """Whether its steps depend on earlier ones, as those of all optimizers but plain SGD do."""
    return type(optimizer) is not optim.SGD or has_momentum(optimizer)


def has_stepped(optimizer: optim.Optimizer) -> bool:
    """Whether its state is that of a step: some optimizers, such as Adagrad, make it when they are constructed."""
    return any(float(one.get("step", 1)) > 0 for one in optimizer.state.values())


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
    decay: Literal["all", "weights"] = "all"
    """What is pulled: all parameters, or weights, which leaves out biases and batch norm (Goyal et al., 2017)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov=true needs momentum, which is 0; set momentum=0.9 or leave nesterov out"
            )

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        settings = vars(self).copy()
        groups = parameters if settings.pop("decay") == "all" else _decayed_apart(parameters)
        return optim.SGD(groups, **settings, fused=True)


def _decayed_apart(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Two groups, also where one is empty: as one vector, parameters could not be told apart."""
    found = list(parameters)
    weights, others = ([one for one in found if (one.dim() > 1) is many] for many in (True, False))
    return [{"params": weights}, {"params": others, "weight_decay": 0.0}]


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
class Lars(RangeChecked):
    """SGD whose rate is set layer by layer (LARS; You et al., 2017), for batches of thousands."""

    lr: Positive = 5.0
    """The learning rate, before the schedule's factor; higher is faster until it diverges."""
    momentum: Fraction = 0.9
    """How much of the last update goes on; 0 remembers nothing."""
    weight_decay: NotNegative = 0.0005
    """Pull of the weights towards zero; biases and batch norm are left alone."""
    trust: Positive = 0.001
    """How far a step at rate 1 moves a layer, as a part of its norm; more is faster until it diverges."""

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return LARS(parameters, **vars(self))


@dataclass(frozen=True, kw_only=True)
class Lamb(RangeChecked):
    """AdamW whose rate is set layer by layer (LAMB; You et al., 2020), for batches of thousands."""

    lr: Positive = 0.01
    """How far a step moves a layer, as a part of its norm, before the schedule's factor."""
    beta1: Fraction = 0.9
    """Memory of the mean gradient; closer to 1 is longer."""
    beta2: Fraction = 0.999
    """Memory of the squared gradient; closer to 1 is longer."""
    eps: Positive = 1e-6
    """Keeps the division finite; more makes it more like SGD."""
    weight_decay: NotNegative = 0.01
    """Pull of the weights towards zero; biases and batch norm are left alone."""

    def __call__(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return LAMB(parameters, lr=self.lr, betas=betas, eps=self.eps, weight_decay=self.weight_decay)

"""The job's optimizer on the flat vector, where that is the same mathematics."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import nn, optim

from paceline.jobs.optimizers import ELEMENTWISE
from paceline.runtimes.flat import Flat


class Rated:
    """An optimizer whose learning rates are those that it was built with, times a schedule's factor."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self._step = plain_step(optimizer)

    def step(self, factor: float) -> None:
        """One step at so many times the learning rates."""
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self._step()

    def state(self) -> dict[int, Any]:
        """What it remembers of its steps, by parameter; ``load`` is its inverse."""
        slots: dict[int, Any] = self.optimizer.state_dict()["state"]
        return slots

    def load(self, state: dict[Any, Any]) -> None:
        """Remember what was saved; the parameters' numbers may have become text in a file."""
        groups = self.optimizer.state_dict()["param_groups"]
        slots = {int(index): slot for index, slot in state.items()}
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})


def plain_step(optimizer: optim.Optimizer) -> Callable[[], object]:
    """The optimizer's step without torch's wrappers for hooks, profilers and the compiler, where nobody has hooked in.

    They cost several times what a small model's step itself does, and import the compiler, which takes a second.
    """
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if type(optimizer) not in ELEMENTWISE or optimizer.defaults.get("differentiable") or hooks:
        return optimizer.step
    return torch.no_grad()(partial(unwrap(type(optimizer).step), optimizer))


def takes_vector(optimizer: optim.Optimizer, flat: Flat) -> bool:
    """Whether an optimizer on a model's parameters treats all their elements alike and leaves none out.

    One that leaves some out would not know them in the flat vector.
    """
    if type(optimizer) not in ELEMENTWISE or len(optimizer.param_groups) > 1:
        return False
    return len(optimizer.param_groups[0]["params"]) == len(flat.parameters)


def flat_optimizer(
    factory: Callable[[Iterable[nn.Parameter]], optim.Optimizer], flat: Flat
) -> optim.Optimizer:
    """Build the optimizer on one flat parameter if it is elementwise and takes all alike; else on the model's own."""
    optimizer = factory(flat.parameters)
    if not takes_vector(optimizer, flat):
        return optimizer
    whole = nn.Parameter(flat.params)
    assert whole.data_ptr() == flat.params.data_ptr()
    whole.grad = flat.grad
    return factory([whole])

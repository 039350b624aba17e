"""The optimizer's step as the live runtime does it: on one vector where the optimizer treats all elements alike."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn, optim

from paceline.jobs.optimizers import ELEMENTWISE, Adam, AdamW, Sgd

Factory = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


class OnCpu(nn.Parameter):
    """A meta parameter that says it is on the CPU: torch's fused optimizers refuse one that says it is not."""

    device = property(lambda _: torch.device("cpu"))


class Update:
    """Steps of an optimizer; those that ship are not built on meta, because torch imports its compiler to do so."""

    def __init__(self, factory: Factory, parameters: list[nn.Parameter], grad: Tensor) -> None:
        self._factory, self._parameters, self._grad = factory, parameters, grad
        self._optimizer: optim.Optimizer | None = None
        self._slots: list[Tensor] = []
        self._steps: list[Tensor] = []

    @property
    def _ships(self) -> bool:
        return isinstance(self._factory, Sgd | Adam) and self._grad.is_meta

    def prepare(self) -> None:
        """Have the state that an optimizer has from its first step on."""
        if self._ships:
            moments = 2 if isinstance(self._factory, Adam) else int(bool(self._factory.momentum))  # type: ignore[attr-defined]
            self._slots = [torch.empty_like(self._grad) for _ in range(moments + 1)]
            self._steps = [torch.empty((), device=self._grad.device)]
        elif self._optimizer is None:
            self._optimizer = self._built()
            self._optimizer.step()

    @property
    def held(self) -> int:
        """Bytes of that state; the vector of the parameters is none of it."""
        if self._optimizer is None:
            return sum(one.nbytes for one in self._slots[1:])
        states = self._optimizer.state.values()
        return sum(one.nbytes for state in states for one in state.values() if isinstance(one, Tensor))

    def step(self) -> None:
        """One step with that state."""
        if self._optimizer is not None:
            self._optimizer.step()
        elif isinstance(self._factory, Adam):
            self._adam(self._factory)
        elif isinstance(self._factory, Sgd):
            self._sgd(self._factory)

    def _sgd(self, sgd: Sgd) -> None:
        whole, *momentum = self._slots
        torch._fused_sgd_(
            [whole],
            [self._grad],
            momentum,
            weight_decay=sgd.weight_decay,
            momentum=sgd.momentum,
            lr=sgd.lr,
            dampening=0.0,
            nesterov=sgd.nesterov,
            maximize=False,
            is_first_step=False,
        )

    def _adam(self, adam: Adam) -> None:
        whole, mean, square = self._slots
        torch._foreach_add_(self._steps, 1)
        fused = torch._fused_adamw_ if isinstance(adam, AdamW) else torch._fused_adam_
        fused(
            [whole],
            [self._grad],
            [mean],
            [square],
            [],
            self._steps,
            lr=adam.lr,
            beta1=adam.beta1,
            beta2=adam.beta2,
            weight_decay=adam.weight_decay,
            eps=adam.eps,
            amsgrad=False,
            maximize=False,
        )

    def _built(self) -> optim.Optimizer:
        stand_ins = [_stand_in(one) for one in self._parameters]
        optimizer = self._factory(stand_ins)
        alike = type(optimizer) in ELEMENTWISE and len(optimizer.param_groups) == 1
        if alike and len(optimizer.param_groups[0]["params"]) == len(stand_ins):
            optimizer = self._factory([_stand_in(nn.Parameter(torch.zeros_like(self._grad)), self._grad)])
        for group in optimizer.param_groups:
            if not group.get("fused"):
                group["params"] = [_plain(one) for one in group["params"]]
        return optimizer


def _stand_in(parameter: nn.Parameter, grad: Tensor | None = None) -> nn.Parameter:
    made = parameter
    if parameter.is_meta:
        made = torch.Tensor._make_subclass(OnCpu, parameter.data, True)
    made.grad = parameter.grad if grad is None else grad
    return made


def _plain(parameter: nn.Parameter) -> nn.Parameter:
    """A meta parameter that says where it is, for optimizers that are not fused."""
    if not isinstance(parameter, OnCpu):
        return parameter
    made = nn.Parameter(parameter.data)
    made.grad = parameter.grad
    return made

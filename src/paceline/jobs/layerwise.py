"""LARS and LAMB: the rate of each layer follows from the norms of its weights and of its update.

A layer is one parameter of two or more dimensions. Biases and the parameters of batch norm, which have one, are neither
adapted nor pulled towards zero. Both optimizers multiply by the learning rate when they apply an update and not when
they remember it, so momentum needs no correction when the rate changes (Goyal et al., 2017, section 3).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim


class _Layerwise(optim.Optimizer):
    """What both share: the steps of each group's layers and of its other parameters."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained: list[Tensor] = [one for one in group["params"] if one.grad is not None]
            layers = [one for one in trained if one.dim() > 1]
            others = [one for one in trained if one.dim() < 2]
            for parameters, adapted in ((layers, True), (others, False)):
                if parameters:
                    updates = self.updates(group, parameters, adapted)
                    torch._foreach_add_(parameters, updates, alpha=-group["lr"])
        return loss

    def updates(self, group: dict[str, Any], parameters: list[Tensor], adapted: bool) -> list[Tensor]:
        """What the learning rate multiplies; ``adapted`` says whether the parameters are layers."""
        raise NotImplementedError

    def kept(self, name: str, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The state of this name of each parameter; it begins with zeros."""
        for one in parameters:
            if name not in self.state[one]:
                self.state[one][name] = torch.zeros_like(one)
        return [self.state[one][name] for one in parameters]


class LARS(_Layerwise):
    """Layer-wise adaptive rate scaling (You et al., 2017).

    With g the gradient of a layer and w its weights: v <- momentum v + r (g + decay w), w <- w - rate v, where
    r = trust |w| / (|g| + decay |w|).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, settings)

    def updates(self, group: dict[str, Any], parameters: list[Tensor], adapted: bool) -> list[Tensor]:
        momentum, decay, trust = group["momentum"], group["weight_decay"], group["trust"]
        updates = [one.grad for one in parameters if one.grad is not None]
        if adapted:
            weights, grads = (torch.stack(torch._foreach_norm(these)) for these in (parameters, updates))
            ratios = _ratios(trust * weights, grads + decay * weights)
            updates = list(torch._foreach_add(updates, parameters, alpha=decay))
            torch._foreach_mul_(updates, ratios)
        if not momentum:
            return updates
        velocities = self.kept("momentum_buffer", parameters)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, updates)
        return velocities


class LAMB(_Layerwise):
    """Layer-wise adaptive moments (You et al., 2020, algorithm 2).

    With u = Adam's direction + decay w, both moments corrected for their start: w <- w - rate |w| / |u| u.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def updates(self, group: dict[str, Any], parameters: list[Tensor], adapted: bool) -> list[Tensor]:
        (first, second), eps = group["betas"], group["eps"]
        grads = [one.grad for one in parameters if one.grad is not None]
        means, squares = (self.kept(name, parameters) for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(means, grads, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - second)
        steps = self._count(parameters)
        roots = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(roots, (1 - second**steps) ** 0.5)
        torch._foreach_add_(roots, eps)
        updates = list(torch._foreach_div(means, roots))
        torch._foreach_div_(updates, 1 - first**steps)
        if adapted:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            weights, lengths = (torch.stack(torch._foreach_norm(these)) for these in (parameters, updates))
            torch._foreach_mul_(updates, _ratios(weights, lengths))
        return updates

    def _count(self, parameters: Sequence[Tensor]) -> int:
        """Count a step of each parameter; all of them have taken as many."""
        for one in parameters:
            self.state[one]["step"] = self.state[one].get("step", 0) + 1
        return int(self.state[parameters[0]]["step"])


def _ratios(above: Tensor, below: Tensor) -> list[Tensor]:
    """The trust ratio of each layer; 1 where a norm is 0, so that weights which begin with zeros can move."""
    return list(torch.where((above > 0) & (below > 0), above / below, 1.0).unbind())

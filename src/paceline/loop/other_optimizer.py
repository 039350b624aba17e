"""Notices other optimizers than the one that ``distribute`` was given: of the model, or of something else."""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from paceline.errors import UsageError, say_on_stderr
from paceline.loop.replica import LoopReplica


class OtherOptimizer:
    """What another optimizer with parameters of the model did since the last complete gradient.

    It may be a wrapper of ours, which steps in its step or skips one: only what changes parameters counts.
    """

    def __init__(self, replica: LoopReplica) -> None:
        self._params, self._own = replica.flat.params, replica.users_optimizer
        self._trained = {id(one) for own in replica.parameters for one in own}
        self._before, self._stepped = 0.0, ""
        self._tells = replica.rank == 0 and replica.workers > 1
        """Whether it is still to be told that something else is trained as well."""

    def register(self) -> list[RemovableHandle]:
        return [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]

    def forget(self) -> None:
        """A new gradient is complete."""
        self._stepped = ""

    def check(self) -> None:
        """Of a gradient that our optimizer has not taken."""
        if self._stepped:
            own = type(self._own).__name__
            raise UsageError(
                f"another optimizer, of class {self._stepped}, has changed the parameters, and step() of the {own} "
                "given to distribute() was not called; step that one, or call distribute() with the optimizer in use"
            )

    def _is_other(self, optimizer: Optimizer) -> bool:
        return optimizer is not self._own and any(
            id(one) in self._trained for group in optimizer.param_groups for one in group["params"]
        )

    @torch.no_grad()
    def _measure(self) -> float:
        return float(torch.linalg.vector_norm(self._params, dtype=torch.float64))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_other(optimizer):
            self._before = self._measure()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_other(optimizer):
            if self._measure() != self._before:
                self._stepped = type(optimizer).__name__
        elif (
            self._tells
            and optimizer is not self._own
            and any(one["params"] for one in optimizer.param_groups)
        ):
            self._tells = False
            say_on_stderr(
                f"an optimizer of class {type(optimizer).__name__} trains parameters that are not in the model given "
                "to distribute(), on each worker by itself; put all that is trained into one module with one optimizer"
            )

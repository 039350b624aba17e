"""What torch calls while a script trains, and the phase of its step that begins or ends there."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from paceline.jobs.step import NO_HOOKS, StepHooks, StepPhase


class LoopPhases(ABC):
    """A model and an optimizer in a loop that is not ours. ``hooks`` observe the phases of each mini-batch.

    Data is what lies before a forward. A loss belongs to forward: backward begins when its first gradient is there.
    """

    hooks: StepHooks = NO_HOOKS
    phase: StepPhase = "data"

    def register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle]:
        return [
            model.register_forward_pre_hook(self._as_hook(self._forward_begins), with_kwargs=True),
            model.register_forward_hook(self._as_hook(self._forward_ends)),
            optimizer.register_step_pre_hook(self._as_hook(self._step_begins)),
            optimizer.register_step_post_hook(self._as_hook(self._step_ends)),
        ]

    @abstractmethod
    def _take_batch(self, samples: int) -> None:
        """The model is called to train on so many samples; 0 where nobody can tell."""

    @abstractmethod
    def evaluated(self) -> None:
        """The model was called, and not to train."""

    @abstractmethod
    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None: ...

    @abstractmethod
    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None: ...

    def _as_hook(self, hook: Callable[..., Any]) -> Any:
        """A hook of a model that may be compiled: it is called, and never compiled itself."""
        apart = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

        def called(*arguments: Any) -> Any:
            # Where nothing is compiled, leaving the compiler alone would cost more than many a hook.
            return (apart if torch.compiler.is_compiling() else hook)(*arguments)

        return called

    def _forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        if model.training and torch.is_grad_enabled():
            self._take_batch(_rows(args, kwargs))
            self._begin_forward()

    def _begin_forward(self) -> None:
        if self.phase == "data":
            self.hooks.end("data")
            self.hooks.begin("forward")
            self.phase = "forward"

    def _forward_ends(self, model: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        if not (model.training and torch.is_grad_enabled()):
            self.evaluated()
        elif self.phase == "forward":
            first = output if isinstance(output, Tensor) else _first_of(output)
            if first is not None and first.requires_grad:
                first.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]

    def _backward_begins(self, _: Tensor) -> None:
        if self.phase == "forward":
            self.hooks.end("forward")
            self.hooks.begin("backward")
            self.phase = "backward"

    def _end_backward(self) -> None:
        if self.phase == "backward":
            self.hooks.end("backward")
        self.phase = "data"


def _first_of(output: Any) -> Tensor | None:
    return next((one for one in tree_leaves(output) if isinstance(one, Tensor) and one.requires_grad), None)


def _rows(args: Any, kwargs: Any) -> int:
    """The samples of a batch: the length of its first tensor; 0 where there is none."""
    first = args[0] if args else None
    if not (isinstance(first, Tensor) and first.dim()):
        first = next(
            (one for one in tree_leaves([args, kwargs]) if isinstance(one, Tensor) and one.dim()), None
        )
    return 0 if first is None else len(first)

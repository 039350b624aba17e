"""What torch calls while a script trains, whose loop is not ours."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from paceline.jobs.step import StepPhase


class LoopPhases(ABC):
    """A model and an optimizer in a loop that is not ours. Data is what lies before a forward."""

    phase: StepPhase = "data"

    def register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle]:
        return [
            model.register_forward_pre_hook(self._as_hook(self._forward_begins), with_kwargs=True),
            optimizer.register_step_pre_hook(self._as_hook(self._step_begins)),
            optimizer.register_step_post_hook(self._as_hook(self._step_ends)),
        ]

    @abstractmethod
    def _forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """The model is called, to train or not."""

    @abstractmethod
    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None: ...

    @abstractmethod
    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None: ...

    def _as_hook(self, hook: Callable[..., Any]) -> Any:
        """A hook of a model that may be compiled: it is called, and never compiled itself."""
        apart = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

        def called(*arguments: Any) -> Any:
            # Where nothing is compiled, leaving the compiler alone would cost more than many a hook.
            return (apart if is_compiling() else hook)(*arguments)

        return called


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def first_tensor(args: Any, kwargs: Any) -> Tensor | None:
    """Of what a model is called with, the first that may have a row for each sample."""
    if args and isinstance(args[0], Tensor) and args[0].dim():
        return args[0]
    return next((one for one in tree_leaves([args, kwargs]) if isinstance(one, Tensor) and one.dim()), None)


def rows_of(args: Any, kwargs: Any) -> int:
    """The samples of a batch: the length of its first tensor; 0 where there is none."""
    try:
        rows: int = args[0].size(0)
    except (IndexError, AttributeError, TypeError):
        first = first_tensor(args, kwargs)
        return 0 if first is None else len(first)
    return rows

"""Which module an operator belongs to, in forward and in backward."""

import traceback
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

LOSS = "loss"
"""The place of what is called outside of the model, in its loss."""


class ModuleTracker:
    """Follows a model through its forward, and finds the way back from the nodes of autograd.

    Autograd numbers its nodes in the order in which forward makes them: whichever module was running when a number
    was given out is the one that the node's backward belongs to.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._owners: dict[int, str] = {}
        for module, name in self._names.items():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), name)
        self._recurrent = {name for module, name in self._names.items() if isinstance(module, nn.RNNBase)}
        self._stack: list[str] = []
        self._starts = [0]
        self._paths = [LOSS]

    @property
    def current(self) -> str:
        """The innermost module that is running."""
        return self._stack[-1] if self._stack else LOSS

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the model's forward while this lasts."""
        hooks = [module.register_forward_pre_hook(self._enter) for module in self._names]
        hooks += [module.register_forward_hook(self._leave, always_call=True) for module in self._names]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin(self) -> None:
        """Forget the last step."""
        self._stack.clear()
        self._mark()

    def backward(self) -> str:
        """The module whose backward is running; one that recomputes its forward is found as in forward."""
        if self._stack:
            return self._stack[-1]
        node: Any = torch._C._current_autograd_node()
        if not node:
            return ""
        if hasattr(node, "variable"):
            return self._owners.get(id(node.variable), "")
        number: int = node._sequence_nr()
        return self._paths[bisect_right(self._starts, number) - 1]

    def is_recurrent(self, name: str) -> bool:
        """Whether the module of this dotted path is one of torch's recurrent layers."""
        return name in self._recurrent

    def failed(self, error: BaseException) -> nn.Module:
        """The innermost module in which an error happened; the model itself if it was in none."""
        found = self.model
        for frame, _ in traceback.walk_tb(error.__traceback__):
            running = frame.f_locals.get("self")
            if isinstance(running, nn.Module) and running in self._names:
                found = running
        return found

    def name(self, module: nn.Module) -> str:
        """The dotted path of one of the model's modules."""
        return self._names[module]

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._names[module])
        self._mark()

    def _leave(self, _: nn.Module, __: Any, ___: Any) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(self.current)

"""What torch's hooks lack: one of backward, those that a compiler leaves alone, and those that no copy has."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch.compiler import is_compiling

Backward = Callable[..., Any]


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class UncopiedHook(partial[Any]):
    """A hook of a model itself: a copy of the model, or what ``torch.save(model)`` writes, has one that does nothing.

    That is a method of the standard library, as the file may be read where paceline is not installed.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def never_compiled(hook: Callable[..., Any]) -> Any:
    """A hook of a model that may be compiled: it is called, and never compiled itself."""
    apart = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

    def called(*arguments: Any) -> Any:
        # Where nothing is compiled, leaving the compiler alone would cost more than many a hook.
        return (apart if is_compiling() else hook)(*arguments)

    return UncopiedHook(called)


class ReplacedBackward:
    """Another ``torch.autograd.backward``, which every ``loss.backward()`` calls, until ``remove``.

    ``make`` is given torch's own.
    """

    def __init__(self, make: Callable[[Backward], Backward]) -> None:
        self._original: Any = torch.autograd.backward
        self._ours = torch.autograd.backward = wraps(self._original)(make(self._original))

    def remove(self) -> None:
        """Put torch's own back, unless somebody has replaced this one since."""
        if torch.autograd.backward is self._ours:
            torch.autograd.backward = self._original

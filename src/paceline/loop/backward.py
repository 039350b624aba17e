"""When a script calls backward, which torch has no hook for, and whether it is in one."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

Backward = Callable[..., Any]


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


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

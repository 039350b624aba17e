"""When a script calls backward, which torch has no hook for."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from paceline.loop.phases import in_backward


class BackwardCalls:
    """Calls ``begins`` before and ``ended`` after every ``torch.autograd.backward``, and so every ``loss.backward()``.

    Not for one that is called in backward, as checkpointing does. Until ``remove``.
    """

    def __init__(self, begins: Callable[[], None], ended: Callable[[], None]) -> None:
        self._original: Any = torch.autograd.backward
        self._observed = True
        original = self._original

        @wraps(original)
        def backward(*arguments: Any, **named: Any) -> None:
            observed = self._observed and not in_backward()
            if observed:
                begins()
            original(*arguments, **named)
            if observed:
                ended()

        self._ours = torch.autograd.backward = backward

    def remove(self) -> None:
        """Put torch's own back, unless somebody has wrapped this one since."""
        self._observed = False
        if torch.autograd.backward is self._ours:
            torch.autograd.backward = self._original

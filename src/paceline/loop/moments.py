"""What torch calls while a script trains and is watched: moments are noted, and what they mean is found out later.

Between two steps of a millisecond, code and data have left the caches, and each line and each attribute of a hook
counts. So hooks are closures that decide next to nothing, and records of many steps are made at once.
"""

from array import array
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Literal

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from paceline.loop.mini_batch import rows_of
from paceline.loop.torch_hooks import Backward, ReplacedBackward, UncopiedHook

Note = int | tuple[int, int] | Literal["backward", "gradient", "returned", "step", "stepped", "evaluated"]
"""What is so from this moment on.

A forward begins, of so many samples; an exchange has ended, of so many bytes sent and received; backward begins, has
the gradient, has returned; the optimizer's step begins, has ended; the model has been evaluated.
"""


class Moments:
    """What was noted and when, by readings of ``perf_counter``, since it was last taken."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._times = array("d")
        self.note, self.time = self._notes.append, self._times.append
        """Each note has a time. They are bound once, for hooks that have no time to look them up."""

    def now(self, note: Note) -> None:
        self.note(note)
        self.time(perf_counter())

    def take(self) -> Iterator[tuple[Note, float]]:
        notes, times = self._notes[:], self._times[:]
        self._notes.clear()
        del self._times[:]
        return zip(notes, times, strict=True)


class MomentHooks:
    """Hooks of a model and an optimizer that note moments while they are registered.

    ``trains`` is called before a forward to train is noted, with its samples, and returns when it is to be called
    again: before the first forward from that reading of the clock on, or the first one after an evaluation, which
    ``evaluates`` is called with.
    """

    def __init__(
        self,
        moments: Moments,
        trains: Callable[[int], float],
        evaluates: Callable[[nn.Module], None],
    ) -> None:
        note, time, clock = moments.note, moments.time, perf_counter
        compiling, has_gradients = is_dynamo_compiling, torch.is_grad_enabled
        apart = torch.compiler.disable(_call)  # type: ignore[no-untyped-call]
        next_call = float("-inf")

        def forward_begins(model: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal next_call
            if compiling():
                apart(forward_begins, model, args, kwargs)
            elif model.training and has_gradients():
                samples = rows_of(args, kwargs)
                now = clock()
                if now >= next_call:
                    next_call = trains(samples)
                    now = clock()
                note(samples)
                time(now)
            else:
                next_call = float("-inf")
                evaluates(model)

        def around_backward(original: Backward) -> Backward:
            def backward(*arguments: Any, **named: Any) -> None:
                if compiling():
                    apart(backward, *arguments, **named)
                    return
                note("backward")
                time(clock())
                try:
                    original(*arguments, **named)
                finally:
                    note("returned")
                    time(clock())

            return backward

        def step_begins(*arguments: Any) -> None:
            if compiling():
                apart(step_begins, *arguments)
            else:
                note("step")
                time(clock())

        def step_ends(*arguments: Any) -> None:
            if compiling():
                apart(step_ends, *arguments)
            else:
                note("stepped")
                time(clock())

        self._forward_begins, self._around_backward = forward_begins, around_backward
        self._step_begins, self._step_ends = step_begins, step_ends

    def register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle | ReplacedBackward]:
        return [
            model.register_forward_pre_hook(UncopiedHook(self._forward_begins), with_kwargs=True),
            ReplacedBackward(self._around_backward),
            optimizer.register_step_pre_hook(self._step_begins),
            optimizer.register_step_post_hook(self._step_ends),
        ]


def _call(hook: Callable[..., None], *arguments: Any, **named: Any) -> None:
    hook(*arguments, **named)

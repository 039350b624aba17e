"""The gradient of one training step: the only loop over forward and backward.

Training, simulation, calibration and the trace all compute their gradients here and observe it through ``StepHooks``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from torch import Tensor

from paceline.jobs.batches import Batch

StepPhase = Literal["data", "forward", "backward"]


class StepHooks:
    """Called at the phases of each mini-batch; this one does nothing."""

    def begin(self, phase: StepPhase) -> None:
        pass

    def end(self, phase: StepPhase) -> None:
        """A phase has ended; the end of "backward" follows ``read``."""

    def last_backward(self) -> None:
        """The gradients are complete when the backward that begins next has ended, so their reduction may overlap."""

    def read(self, loss: Tensor) -> float:
        """Return the loss as a number; waits for the device."""
        return loss.item()


NO_HOOKS = StepHooks()


def accumulate_gradient(
    forward: Callable[[Batch], Tensor],
    grad: Tensor,
    batches: Iterator[Batch],
    shares: Sequence[float],
    hooks: StepHooks = NO_HOOKS,
) -> list[float]:
    """Overwrite ``grad`` with the gradients of the mini-batches, each times its share; return their losses.

    ``grad`` is the memory of the parameters' gradients. One mini-batch is taken for each share; with none, the
    gradient is zero.
    """
    losses = []
    for number, share in enumerate(shares, start=1):
        hooks.begin("data")
        batch = next(batches)
        hooks.end("data")
        hooks.begin("forward")
        loss = forward(batch)
        hooks.end("forward")
        if number == 1:
            grad.zero_()
        if number == len(shares):
            hooks.last_backward()
        hooks.begin("backward")
        # Handed a gradient instead, torch imports sympy to check its shape, which takes half a second.
        (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
        losses.append(hooks.read(loss))
        hooks.end("backward")
    if not shares:
        grad.zero_()
        hooks.last_backward()
        hooks.end("backward")
    return losses

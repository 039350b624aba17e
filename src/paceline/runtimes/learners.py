"""The gradients of a worker's learners: one after the other, or all of them together by one traced program."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from paceline.errors import UsageError
from paceline.jobs.batches import Batch
from paceline.jobs.step import NO_HOOKS, StepHooks, accumulate_gradient
from paceline.runtimes.together import NotTraced, StackedBatch, TracedGradients, stack_batches

if TYPE_CHECKING:
    from paceline.runtimes.flat import FlatModel

Shares = Sequence[Sequence[float]]
"""For each learner, the share of each of its mini-batches in its gradient."""


RISE = 7 / 6
"""How many times as high the throughput must be for twice the learners; higher takes fewer.

More throughput alone is not worth it: a step of twice the learners has twice the samples, and z makes less of each.
"""
MOST_LEARNERS = 64


class NotTogether(UsageError):
    def __init__(self, learners: int, job: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"the {learners} learners of job {job!r} cannot be computed together: {why}; set compute=in-turn"
        )


def find_count(rates: Callable[[int], Sequence[float]], most: int) -> int:
    """The number of learners whose throughput is worth it; of several workers' numbers the smallest.

    ``rates`` gives the samples a second of each worker with so many learners. 1, 2, 4, ... are tried, up to ``most``,
    for which there is data, until two in a row were worth no more than what was tried before (after CROSSBOW's rule).
    """
    worth: dict[int, list[float]] = {}
    for doublings in range(max(1, min(most, MOST_LEARNERS)).bit_length()):
        worth[2**doublings] = [rate / RISE**doublings for rate in rates(2**doublings)]
        each = zip(*worth.values(), strict=True)
        best = [max(zip(own, worth, strict=True), key=itemgetter(0))[1] for own in each]
        if 2**doublings >= 4 * max(best):
            break
    return min(best)


class LearnerGradients(Protocol):
    def accumulate(
        self, batches: Iterator[Batch], shares: Shares, hooks: StepHooks = NO_HOOKS
    ) -> list[float]:
        """Overwrite the learners' rows of the gradient; return the losses in the order of the mini-batches.

        One mini-batch is taken for each share, those of the first learner first.
        """


class InTurnGradients(LearnerGradients):
    """One learner after the other, by the loop that computes every gradient."""

    def __init__(self, model: "FlatModel") -> None:
        self._model = model

    def accumulate(
        self, batches: Iterator[Batch], shares: Shares, hooks: StepHooks = NO_HOOKS
    ) -> list[float]:
        model = self._model
        if len(shares) == 1:
            return model.accumulate(batches, shares[0], hooks)
        losses = []
        for learner, own in enumerate(shares):
            forward, grad = partial(model.forward, learner=learner), model.flat.grad_rows[learner]
            losses += accumulate_gradient(forward, grad, batches, own, hooks)
        return losses


class TogetherGradients(LearnerGradients):
    """All learners at once, each operator on all of them; a step whose batches are not alike is computed in turn."""

    def __init__(self, model: "FlatModel") -> None:
        self._in_turn, self._model = InTurnGradients(model), model
        self._traced: dict[object, TracedGradients] = {}

    def accumulate(
        self, batches: Iterator[Batch], shares: Shares, hooks: StepHooks = NO_HOOKS
    ) -> list[float]:
        hooks.begin("data")
        taken = [[next(batches) for _ in own] for own in shares]
        stacks = stack_batches(taken)
        if stacks is None or any(own != shares[0] for own in shares):
            return self._in_turn.accumulate((batch for own in taken for batch in own), shares, hooks)
        hooks.end("data")
        losses = [
            self._trace(stack).add(stack, share, hooks, first=place == 0)
            for place, (stack, share) in enumerate(zip(stacks, shares[0], strict=True))
        ]
        return [loss for own in zip(*losses, strict=True) for loss in own]

    def _trace(self, stack: StackedBatch) -> TracedGradients:
        if stack.shapes not in self._traced:
            try:
                self._traced[stack.shapes] = TracedGradients(self._model, stack)
            except NotTraced as why:
                raise NotTogether(len(self._model.learners), self._model.job.name, str(why)) from why
        return self._traced[stack.shapes]

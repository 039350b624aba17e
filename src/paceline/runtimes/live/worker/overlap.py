"""Gradients summed over all workers in buckets, while backward goes on."""

from functools import partial
from time import perf_counter

from torch import Tensor

from paceline.collectives.traffic import plan_buckets
from paceline.runtimes.flat import CONTROL, Flat
from paceline.runtimes.live.worker.allreduce import Pending
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.slowness import Slowness
from paceline.strategies.effects import BucketedMean


class Overlap:
    """Starts a bucket's sum as soon as backward has filled it, always in the order of the plan.

    The last bucket, which carries the control elements, is ready only when backward ends, so it is summed
    afterwards; a model with one bucket needs no hook at all. A parameter that backward does not reach delays
    its bucket and those behind it until the end, and no worker hangs.
    """

    def __init__(self, flat: Flat, mean: BucketedMean, group: Group, slowness: Slowness) -> None:
        self._group, self._slowness = group, slowness
        storage = flat.grad_storage
        sizes = [parameter.numel() for parameter in flat.parameters]
        *early, last = plan_buckets(sizes, storage.element_size(), mean.first_bucket, mean.bucket)
        self._early = [flat.grad[bucket.start : bucket.stop] for bucket in early]
        self._last = storage[: CONTROL + last.stop]
        self._sizes = [len(bucket.parameters) for bucket in early]
        traffic = [group.traffic(part) for part in (*self._early, self._last)]
        self.sent, self.received = map(sum, zip(*traffic, strict=True))
        """Bytes of a step."""
        for place, bucket in enumerate(early):
            for index in bucket.parameters:
                flat.parameters[index].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._filled, place)
                )
        self._active = False

    def begin(self) -> None:
        """Backward is about to start."""
        self._active = True
        self._missing = list(self._sizes)
        self._pending: list[Pending] = []
        self._begun: list[float] = []
        self._ended: list[float | None] = [None] * len(self._early)

    def _filled(self, place: int, _: Tensor) -> None:
        if not self._active:
            return
        self._missing[place] -= 1
        while len(self._pending) < len(self._early) and not self._missing[len(self._pending)]:
            self._slowness.stretch()
            self._start()

    def _start(self) -> None:
        place = len(self._pending)
        self._begun.append(perf_counter())
        self._pending.append(self._group.start_sum(self._early[place], partial(self._done, place)))

    def _done(self, place: int) -> None:
        self._ended[place] = perf_counter()

    def finish(self) -> list[tuple[float, float]]:
        """Sum the rest and wait for all; return when traffic ran behind backward, which has just ended."""
        self._active = False
        over = perf_counter()
        behind = len(self._pending)
        while len(self._pending) < len(self._early):
            self._start()
        self._group.sum(self._last)
        for work in self._pending:
            work.wait()
        return self._hidden(behind, over)

    def _hidden(self, behind: int, over: float) -> list[tuple[float, float]]:
        """Sums follow each other, so each begins when it was started and the one before it was done."""
        spans = []
        free = 0.0
        for begun, ended in zip(self._begun[:behind], self._ended, strict=False):
            # The time may still be on its way from the other thread; then it is after the end of backward.
            end = over if ended is None else min(ended, over)
            spans.append((max(begun, free), end))
            free = end
        return spans

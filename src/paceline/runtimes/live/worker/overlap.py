"""What happens beside a worker's gradient: sums in buckets while backward runs, and a slowdown."""

from functools import partial
from time import perf_counter, sleep

from torch import Tensor

from paceline.clusters.cluster import takes_turn
from paceline.collectives.traffic import plan_buckets
from paceline.runtimes.flat import CONTROL, Flat
from paceline.runtimes.live.worker.comm import PendingSum, SoloComm
from paceline.strategies.effects import BucketedMean


class Slowdown:
    def __init__(self, factor: float = 1.0, rank: int = 0, turns: int = 0) -> None:
        self._most = self._extra = factor - 1
        self._rank, self._turns = rank, turns
        self._since = 0.0

    def begin(self, step: int) -> None:
        if self._most:
            self._extra = self._most if takes_turn(self._rank, step, self._turns) else 0.0
            self._since = perf_counter()

    def stretch(self) -> None:
        """Sleep for as long as the computation since the last call would have taken longer."""
        if self._extra:
            sleep(self._extra * (perf_counter() - self._since))
            self._since = perf_counter()


class Overlap:
    """Starts a bucket's sum as soon as backward has filled it; the last one carries the control elements."""

    def __init__(self, flat: Flat, comm: SoloComm, slowdown: Slowdown, mean: BucketedMean) -> None:
        self._comm, self._slowdown = comm, slowdown
        storage = flat.grad_storage
        sizes = [parameter.numel() for parameter in flat.parameters]
        *early, last = plan_buckets(sizes, storage.element_size(), mean.first_bucket, mean.bucket)
        self._early = [flat.grad[bucket.start : bucket.stop] for bucket in early]
        self._last = storage[: CONTROL + last.stop]
        self._sizes = [len(bucket.parameters) for bucket in early]
        traffic = [comm.traffic(part) for part in (*self._early, self._last)]
        self.sent, self.received = map(sum, zip(*traffic, strict=True))
        for place, bucket in enumerate(early):
            for index in bucket.parameters:
                flat.parameters[index].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._filled, place)
                )
        self._active = False

    def begin(self) -> None:
        self._active = True
        self._missing = list(self._sizes)
        self._pending: list[PendingSum] = []
        self._begun: list[float] = []
        self._ended: list[float | None] = [None] * len(self._early)

    def _filled(self, place: int, _: Tensor) -> None:
        if not self._active:
            return
        self._missing[place] -= 1
        while len(self._pending) < len(self._early) and not self._missing[len(self._pending)]:
            self._slowdown.stretch()
            self._start()

    def _start(self) -> None:
        place = len(self._pending)

        def done() -> None:
            self._ended[place] = perf_counter()

        self._begun.append(perf_counter())
        self._pending.append(self._comm.start_sum(self._early[place], done))

    def finish(self) -> list[tuple[float, float]]:
        """Sum the rest and wait for all; return the spans in which sums ran during backward, which has just ended."""
        self._active = False
        over = perf_counter()
        behind = len(self._pending)
        while len(self._pending) < len(self._early):
            self._start()
        self._comm.sum(self._last)
        for wait in self._pending:
            wait()
        spans, free = [], 0.0
        for begun, ended in zip(self._begun[:behind], self._ended, strict=False):
            # Sums follow each other. An end may still be on its way from the other thread: it is after backward's.
            end = over if ended is None else min(ended, over)
            spans.append((max(begun, free), end))
            free = end
        return spans

"""What happens beside a worker's gradient: sums in buckets while backward runs, and a slowdown."""

from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep

import torch
from torch import Tensor

from paceline.clusters.cluster import takes_turn
from paceline.collectives.traffic import Bucket, plan_buckets
from paceline.errors import UsageError
from paceline.runtimes.compression import Compressor
from paceline.runtimes.flat import CONTROL, SQUARES, Flat
from paceline.runtimes.live.worker.comm import PendingSum, SoloComm
from paceline.runtimes.noise_scale import squared_norm
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
        sizes = [parameter.numel() for parameter in flat.parameters]
        *self._early, self._last = plan_buckets(sizes, flat.grad.itemsize, mean.first_bucket, mean.bucket)
        self._control = flat.grad_storage[:CONTROL]
        self._parts = [flat.grad[bucket.start : bucket.stop] for bucket in self._early]
        self._end = flat.grad_storage[: CONTROL + self._last.stop]
        self._rest = flat.grad[: self._last.stop]
        self.sent, self.received = self._traffic()
        self._registered = [
            flat.parameters[index].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._filled, place, index)
            )
            for place, bucket in enumerate(self._early)
            for index in bucket.parameters
        ]
        self._active = self._measured = False

    def remove(self) -> None:
        """The parameters may be trained by others, without sums."""
        self._active = False
        for hook in self._registered:
            hook.remove()

    @property
    def has_begun(self) -> bool:
        """Whether a sum is under way, for which the other workers wait."""
        return self._active and bool(self._pending)

    def begin(self, share: float = 1.0, *, measured: bool = False, scaled: bool = True) -> None:
        """The last backward of a step begins, in which the gradient becomes ``share`` times what it is.

        Where backward leaves it not ``scaled`` so, it is multiplied before it is summed. Where it is ``measured``, the
        squared norm of the whole one travels with the sums, added up over all workers.
        """
        self._active, self._measured, self._share, self._scaled = True, measured, share, scaled
        self._squares: list[Tensor] = []
        self._missing = [set(bucket.parameters) for bucket in self._early]
        self._pending: list[PendingSum] = []
        self._begun: list[float] = []
        self._ended: list[float | None] = [None] * len(self._early)

    def _filled(self, place: int, index: int, parameter: Tensor) -> None:
        if not self._active:
            return
        if place < len(self._pending):
            raise UsageError(
                f"a parameter of shape {tuple(parameter.shape)} has another gradient in the same backward, and the sum "
                "of its bucket has begun, as where checkpointing repeats a layer that is used twice; call checkpoint() "
                "with use_reentrant=False"
            )
        self._missing[place].discard(index)
        while len(self._pending) < len(self._early) and not self._missing[len(self._pending)]:
            self._slowdown.stretch()
            self._start_next()

    def _start_next(self) -> None:
        place = len(self._pending)

        def done() -> None:
            self._ended[place] = perf_counter()

        self._begun.append(perf_counter())
        self._scale(self._parts[place])
        if self._measured:
            self._squares.append(squared_norm([self._parts[place]]))
        self._pending.append(self._start(place, done))

    def finish(self) -> list[tuple[float, float]]:
        """Sum the rest and wait for all; return the spans in which sums ran during backward, which has just ended."""
        self._active = False
        over = perf_counter()
        behind = len(self._pending)
        while len(self._pending) < len(self._early):
            self._start_next()
        self._scale(self._rest)
        if self._measured:
            squares = [*self._squares, squared_norm([self._rest])]
            self._control[SQUARES] = torch.stack(squares).sum() / self._share**2
        self._finish()
        spans, free = [], 0.0
        for begun, ended in zip(self._begun[:behind], self._ended, strict=False):
            # Sums follow each other. An end may still be on its way from the other thread: it is after backward's.
            end = over if ended is None else min(ended, over)
            spans.append((max(begun, free), end))
            free = end
        return spans

    def pause(self) -> None:
        """Backwards up to the next ``begin`` only add to the gradient."""
        self._active = False

    def _scale(self, part: Tensor) -> None:
        if not self._scaled:
            with torch.no_grad():
                part.mul_(self._share)

    def _traffic(self) -> tuple[int, int]:
        sent, received = zip(*map(self._comm.traffic, (*self._parts, self._end)), strict=True)
        return sum(sent), sum(received)

    def _start(self, place: int, done: Callable[[], None]) -> PendingSum:
        return self._comm.start_sum(self._parts[place], done)

    def _finish(self) -> None:
        self._comm.sum(self._end)
        for wait in self._pending:
            wait()


class CompressedOverlap(Overlap):
    """Reduces buckets as a codec does, in one thread and in their order; the control elements have their own sum."""

    def __init__(
        self, flat: Flat, comm: SoloComm, slowdown: Slowdown, compressor: Compressor, mean: BucketedMean
    ) -> None:
        super().__init__(flat, comm, slowdown, mean)
        self._compressor = compressor

    def remove(self) -> None:
        """The parameters may be trained by others, without sums."""
        self._active = False
        for hook in self._registered:
            hook.remove()

    def begin(self, share: float = 1.0, *, measured: bool = False, scaled: bool = True) -> None:
        super().begin(share, measured=measured, scaled=scaled)
        self._failed = False
        self.sent, self.received = self._traffic()

    def _traffic(self) -> tuple[int, int]:
        """Of the control elements; each bucket adds its own."""
        return self._comm.traffic(self._control)

    def _start(self, place: int, done: Callable[[], None]) -> PendingSum:
        def task() -> None:
            if not self._failed:  # the other workers wait in an exchange that this one has left
                self._reduce(self._early[place])
                done()

        return self._comm.start(task)

    def _reduce(self, bucket: Bucket) -> None:
        self._failed = True
        program = self._compressor.reduce_gradient(bucket.start, bucket.stop)
        sent, received = self._comm.reduce(program)
        self._failed = False
        self.sent, self.received = self.sent + sent, self.received + received

    def _finish(self) -> None:
        for wait in self._pending:
            wait()
        self._reduce(self._last)
        self._comm.sum(self._control)

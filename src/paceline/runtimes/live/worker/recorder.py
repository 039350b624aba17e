"""The records of a worker's steps: all its time is in spans, and exchanges are split into transfer and wait."""

from collections.abc import Callable
from time import perf_counter

import torch

from paceline.records.spans import Kind, Span, StepRecord, TimeLedger
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.drift import DriftCheck

SETTLE_AFTER = 256
"""Exchanges that are kept before they are settled outside a sync point: it bounds what a killed worker loses."""

LONG = 1024
"""Steps after which the next exchange is settled at once, so that the steps after it need not be kept."""


class StepRecorder:
    """Makes the records of one worker and writes them in order.

    Each mark gives the time since the last one to a kind, so spans have no gaps. How long a worker spent in an
    exchange is known at once, how much of it was waiting only when all have compared: ``settle`` does that, and until
    then the records stay here.
    """

    def __init__(
        self,
        comm: SoloComm,
        write: Callable[[StepRecord], None],
        ledger: TimeLedger,
        begun: float = 0.0,
        flush: Callable[[], None] = lambda: None,
        drift: DriftCheck | None = None,
    ) -> None:
        """``begun`` is the run's time so far, where a run resumes; ``flush`` brings what was written to the disk.

        Replicas are compared by ``drift`` whenever exchanges are, in the same message.
        """
        self._comm, self._write, self._ledger, self._flush = comm, write, ledger, flush
        self._drift = drift
        self._last = perf_counter()
        self._origin = self._last - begun
        self._record = StepRecord(step=0, is_step=False)
        self._warm = False
        self._closed: list[StepRecord] = []
        self._exchanges: list[tuple[StepRecord, int]] = []
        self._seen = self._settled_at = 0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._origin

    def mark(self, kind: Kind) -> None:
        """The time since the last mark was spent on ``kind``."""
        now = perf_counter()
        self._record.spans.append(Span(kind, self._last - self._origin, now - self._last))
        self._last = now

    def exchanged(self, sent: int, received: int) -> None:
        """The time since the last mark was spent in an exchange with all other workers."""
        self._exchanges.append((self._record, len(self._record.spans)))
        self.mark("communicate")
        self.moved(sent, received)
        if len(self._exchanges) >= SETTLE_AFTER:
            self.settle()

    def moved(self, sent: int, received: int) -> None:
        """Bytes were sent or received; their time is marked elsewhere."""
        self._record.sent += sent
        self._record.received += received

    def answered(self, held: float) -> None:
        """The time since the last mark was spent on an answer, ``held`` seconds of it waiting for other workers."""
        self.mark("communicate")
        span = self._record.spans.pop()
        wait = min(held, span.length)
        transfer = span._replace(length=span.length - wait)
        self._record.spans.append(transfer)
        if wait > 0:
            self._record.spans.append(Span("wait", transfer.start + transfer.length, wait))

    def hide(self, start: float, end: float) -> None:
        """Traffic overlapped with backward between these readings of the clock."""
        if end > start:
            self._record.hidden.append(Span("communicate", start - self._origin, end - start))

    def count(self, samples: int) -> None:
        """``samples``, or none, were trained on: this is a step, and not a sync point."""
        self._record.samples += samples
        self._record.is_step = True
        self._record.warm_up, self._warm = not self._warm, True

    def close(self, step: int) -> None:
        """A step or a sync point is over."""
        if not self._record.spans:
            return
        self.mark("other")
        self._record.step = step
        self._closed.append(self._record)
        self._record = StepRecord(step=step, is_step=False)
        if not self._exchanges:
            self._write_closed()

    def pace(self, progress: int) -> None:
        """Settle the exchange that ended many steps without any; called at the start of every step.

        All workers do so alike: they call this after the same exchange with the same progress, because progress
        counts what all of them know. Between two exchanges, where it may count a worker's own steps, nothing happens.
        """
        if len(self._exchanges) == self._seen:
            return
        self._seen = len(self._exchanges)
        if progress - self._settled_at >= LONG:
            self._settled_at = progress
            self.settle()

    def settle(self) -> None:
        """Compare exchanges with all other workers, which must settle at the same point, and write what is closed.

        The last worker to arrive at an exchange did not wait, so the shortest time is what the transfer takes. The
        comparison itself is so small that its time is all waiting; its bytes are not counted.
        """
        if self._comm.workers > 1:
            self._compare()
        self._write_closed()
        self._flush()

    def _compare(self) -> None:
        lengths = [record.spans[place].length for record, place in self._exchanges]
        drift = self._drift.numbers() if self._drift else [0.0]
        numbers = torch.tensor([*lengths, *drift], dtype=torch.float64)
        self._comm.minimum(numbers)
        smallest = numbers.tolist()
        if self._drift:
            self._drift.compare(smallest[len(lengths) :])
        # From the last to the first: a span that becomes two moves those after it.
        for (record, place), transfer in reversed([*zip(self._exchanges, smallest, strict=False)]):
            kind, start, length = record.spans[place]
            if (wait := length - transfer) > 0:
                record.spans[place : place + 1] = (
                    Span("wait", start, wait),
                    Span(kind, start + wait, transfer),
                )
        self._exchanges.clear()
        self._seen = 0
        self.mark("wait")

    @property
    def pending(self) -> bool:
        """Whether anything but a comparison is in the open record; the same on all workers at a sync point."""
        return any(span.kind != "wait" for span in self._record.spans)

    def give_up(self, step: int) -> None:
        """Write all records, unsplit: there may be no worker left to compare with.

        A step whose update was not applied belongs to no saved state: it is recorded as the step that it would have
        been, and a run that resumes drops it.
        """
        self._exchanges.clear()
        applied = any(span.kind == "apply" for span in self._record.spans)
        self.close(step if applied or not self._record.is_step else step + 1)
        self._write_closed()

    def _write_closed(self) -> None:
        for record in self._closed:
            self._ledger.add(record)
            self._write(record)
        self._closed.clear()

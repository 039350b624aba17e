"""Where a simulated worker's time goes: the open step, which is counted and may be recorded when it ends."""

from collections.abc import Callable, Sequence

from paceline.costs.stated import GradientTimes
from paceline.records.spans import KINDS, Span, StepRecord, TimeLedger, Totals
from paceline.runtimes.virtual.timeline import Interval

Hidden = tuple[Sequence[Interval], float]
"""Transfers behind backward, and their total length."""
DATA, FORWARD, BACKWARD, COMMUNICATE, WAIT, APPLY, EVALUATE, CHECKPOINT, _ = range(len(KINDS))


class StepLedger:
    """The open step, or what lies between two steps, in a flat list: this runs for every step of every worker."""

    __slots__ = (
        *("clock", "hidden", "is_step", "received", "samples", "seconds", "sent"),
        *("_hidden", "_ledger", "_record", "_spans"),
    )

    def __init__(self, record: Callable[[StepRecord], None] | None = None) -> None:
        """``record`` is given every step and everything between steps as it ends; without it, only sums are kept."""
        self._ledger, self._record = TimeLedger(), record
        self._open(0)

    def _open(self, clock: int) -> None:
        self.clock, self.is_step = clock, False
        self.seconds = [0.0] * len(KINDS)
        self.hidden = 0.0
        self.sent = self.received = self.samples = 0
        if self._record is not None:
            self._spans: list[Span] = []
            self._hidden: list[Span] = []

    def gradient(self, start: float, times: GradientTimes, samples: int) -> None:
        """Count data, forward and backward of a finished mini-batch."""
        seconds = self.seconds
        data, forward, backward = times
        seconds[DATA] += data
        seconds[FORWARD] += forward
        seconds[BACKWARD] += backward
        self.samples = samples
        self.is_step = True
        if self._record is not None:
            for kind, length in enumerate(times):
                self._note(kind, start, length)
                start += length

    def unfinished(self, start: float, times: GradientTimes, end: float) -> None:
        """Count a mini-batch that is cut short: its time counts, its samples do not."""
        for kind, length in enumerate(times):
            self.span(kind, start, max(0.0, min(length, end - start)))
            start += length

    def span(self, kind: int, start: float, length: float) -> None:
        self.seconds[kind] += length
        if self._record is not None:
            self._note(kind, start, length)

    def exchange(self, start: float, wait: float, communicate: float, sent: int, received: int) -> None:
        """Count waiting for other workers, then a transfer with these bytes out and in."""
        seconds = self.seconds
        seconds[WAIT] += wait
        seconds[COMMUNICATE] += communicate
        self.sent += sent
        self.received += received
        if self._record is not None:
            self._note(WAIT, start, wait)
            self._note(COMMUNICATE, start + wait, communicate)

    def overlap(self, hidden: Hidden) -> None:
        """Count transfers that ran behind backward."""
        self.hidden += hidden[1]
        if self._record is not None:
            self._hidden += [Span("communicate", start, stop - start) for start, stop in hidden[0]]

    def moved(self, sent: int, received: int) -> None:
        """Count bytes out and in."""
        self.sent += sent
        self.received += received

    def end_step(self, clock: int) -> None:
        """What follows belongs to a sync point, not to the step before it."""
        if self.is_step:
            self.close(clock)

    def cut(self, clock: int) -> None:
        """The worker ends here: the open step counts only if it was complete."""
        self.is_step = self.is_step and clock > self.clock
        self.close(clock)

    def close(self, clock: int) -> None:
        """Count what is open and begin anew; what holds nothing is not recorded."""
        if self._record is not None and (self._spans or self.sent or self.received or self.is_step):
            samples = self.samples if self.is_step else 0
            traffic = self.sent, self.received
            self._record(
                StepRecord(clock, samples, self._spans, self._hidden, *traffic, is_step=self.is_step)
            )
        if self.is_step:
            self._ledger.add_step(self.seconds, self.hidden, self.sent, self.received, self.samples)
        else:
            self._ledger.add_outside(self.seconds, self.sent, self.received)
        self._open(clock)

    def totals(self) -> Totals:
        return self._ledger.totals()

    def _note(self, kind: int, start: float, length: float) -> None:
        if length > 0:
            self._spans.append(Span(KINDS[kind], start, length))

"""A worker's books: where its simulated time went. ``Books`` adds up; ``FullBooks`` also keeps every step."""

from collections.abc import Callable, Sequence

from paceline.costs.base import Times
from paceline.records.ledger import TimeLedger
from paceline.records.spans import KINDS, Span, StepRecord, Totals
from paceline.runtimes.virtual.timeline import Interval

Hidden = tuple[Sequence[Interval], float]
"""Transfers, and their length in all."""
DATA, FORWARD, BACKWARD, COMMUNICATE, WAIT, APPLY, EVALUATE, CHECKPOINT, _ = range(len(KINDS))


class Books:
    """The open step or meeting, in a flat list: this runs for every step of every worker."""

    __slots__ = ("clock", "hidden", "is_step", "ledger", "received", "samples", "seconds", "sent")

    def __init__(self) -> None:
        self.ledger = TimeLedger()
        self._open(0)

    def _open(self, clock: int) -> None:
        self.clock, self.is_step = clock, False
        self.seconds = [0.0] * len(KINDS)
        self.hidden = 0.0
        self.sent = self.received = self.samples = 0

    def gradient(self, start: float, times: Times, samples: int) -> None:  # noqa: ARG002
        """A mini-batch was trained on."""
        seconds = self.seconds
        data, forward, backward = times
        seconds[DATA] += data
        seconds[FORWARD] += forward
        seconds[BACKWARD] += backward
        self.samples = samples
        self.is_step = True

    def unfinished(self, start: float, times: Times, end: float) -> None:
        """A mini-batch that somebody's end cuts short: its time counts, its samples do not."""
        for kind, length in enumerate(times):
            self.span(kind, start, max(0.0, min(length, end - start)))
            start += length

    def span(self, kind: int, start: float, length: float) -> None:  # noqa: ARG002
        """Some more of the present step or meeting."""
        self.seconds[kind] += length

    def exchange(self, start: float, wait: float, communicate: float, sent: int, received: int) -> None:  # noqa: ARG002
        """Waiting for others, then a transfer with these bytes out and in."""
        seconds = self.seconds
        seconds[WAIT] += wait
        seconds[COMMUNICATE] += communicate
        self.sent += sent
        self.received += received

    def behind(self, hidden: Hidden) -> None:
        """Transfers that ran behind backward."""
        self.hidden += hidden[1]

    def moved(self, sent: int, received: int) -> None:
        """Bytes out and in."""
        self.sent += sent
        self.received += received

    def meet(self, clock: int) -> None:
        """What follows belongs to a meeting, not to the step before it."""
        if self.is_step:
            self.close(clock)

    def cut(self, clock: int) -> None:
        """The worker's time is over: a step counts only if it had come to its end."""
        self.is_step = self.is_step and clock > self.clock
        self.close(clock)

    def close(self, clock: int) -> None:
        """A step or a meeting is over."""
        if self.is_step:
            self.ledger.add_step(self.seconds, self.hidden, self.sent, self.received, self.samples)
        else:
            self.ledger.add_outside(self.seconds, self.sent, self.received)
        self._open(clock)

    def totals(self) -> Totals:
        """The sums as records name them."""
        return self.ledger.totals()


class FullBooks(Books):
    """Also a record of every step and meeting, handed over as it ends."""

    __slots__ = ("_hand_over", "_hidden", "_spans")

    def __init__(self, hand_over: Callable[[StepRecord], None]) -> None:
        self._hand_over = hand_over
        super().__init__()

    def _open(self, clock: int) -> None:
        super()._open(clock)
        self._spans: list[Span] = []
        self._hidden: list[Span] = []

    def gradient(self, start: float, times: Times, samples: int) -> None:
        """Note and count."""
        super().gradient(start, times, samples)
        for kind, length in enumerate(times):
            self._note(kind, start, length)
            start += length

    def span(self, kind: int, start: float, length: float) -> None:
        """Note and count."""
        super().span(kind, start, length)
        self._note(kind, start, length)

    def exchange(self, start: float, wait: float, communicate: float, sent: int, received: int) -> None:
        """Note and count."""
        super().exchange(start, wait, communicate, sent, received)
        self._note(WAIT, start, wait)
        self._note(COMMUNICATE, start + wait, communicate)

    def behind(self, hidden: Hidden) -> None:
        """Note and count."""
        super().behind(hidden)
        self._hidden += [Span("communicate", start, stop - start) for start, stop in hidden[0]]

    def close(self, clock: int) -> None:
        """Hand the record over, unless it is of a meeting in which nothing happened."""
        if self._spans or self.sent or self.received or self.is_step:
            samples = self.samples if self.is_step else 0
            traffic = self.sent, self.received
            self._hand_over(
                StepRecord(clock, samples, self._spans, self._hidden, *traffic, is_step=self.is_step)
            )
        super().close(clock)

    def _note(self, kind: int, start: float, length: float) -> None:
        if length > 0:
            self._spans.append(Span(KINDS[kind], start, length))

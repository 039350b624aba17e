"""A worker's books: where its simulated time went. ``Books`` adds up; ``FullBooks`` also keeps every step."""

from collections.abc import Callable, Sequence

from paceline.costs.base import Times
from paceline.records.spans import KINDS, Span, StepRecord, Totals
from paceline.runtimes.virtual.timeline import Interval

Hidden = tuple[Sequence[Interval], float]
"""Transfers, and their length in all."""
DATA, FORWARD, BACKWARD, COMMUNICATE, WAIT, APPLY, EVALUATE, CHECKPOINT, _ = range(len(KINDS))


class Books:
    """Sums only, in a flat list: this runs for every step of every worker."""

    __slots__ = ("hidden", "received", "samples", "seconds", "sent", "steps")

    def __init__(self) -> None:
        self.seconds = [0.0] * len(KINDS)
        self.hidden = 0.0
        self.sent = self.received = self.steps = self.samples = 0

    def gradient(self, start: float, times: Times, samples: int) -> None:  # noqa: ARG002
        """A mini-batch was trained on."""
        seconds = self.seconds
        data, forward, backward = times
        seconds[DATA] += data
        seconds[FORWARD] += forward
        seconds[BACKWARD] += backward
        self.samples += samples
        self.steps += 1

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

    def close(self, clock: int) -> None:
        """A step or a meeting is over."""

    def totals(self) -> Totals:
        """The sums as records name them."""
        return Totals(
            seconds=dict(zip(KINDS, self.seconds, strict=True)),
            hidden=self.hidden,
            sent=self.sent,
            received=self.received,
            steps=self.steps,
            samples=self.samples,
        )


class FullBooks(Books):
    """Sums, and a record of every step and meeting, handed over as it ends."""

    __slots__ = ("_hand_over", "_record")

    def __init__(self, hand_over: Callable[[StepRecord], None]) -> None:
        super().__init__()
        self._hand_over = hand_over
        self._record = StepRecord(0, meeting=True)

    def gradient(self, start: float, times: Times, samples: int) -> None:
        """Note and count."""
        super().gradient(start, times, samples)
        self._record.samples, self._record.meeting = samples, False
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
        self._record.sent += sent
        self._record.received += received

    def behind(self, hidden: Hidden) -> None:
        """Note and count."""
        super().behind(hidden)
        self._record.hidden += [Span("communicate", start, stop - start) for start, stop in hidden[0]]

    def moved(self, sent: int, received: int) -> None:
        """Note and count."""
        super().moved(sent, received)
        self._record.sent += sent
        self._record.received += received

    def meet(self, clock: int) -> None:
        """End the step's record, once a meeting."""
        if not self._record.meeting:
            self.close(clock)

    def close(self, clock: int) -> None:
        """Hand the record over, unless it is of a meeting in which nothing happened."""
        record = self._record
        if record.spans or record.sent or record.received or not record.meeting:
            record.step = clock
            self._hand_over(record)
        self._record = StepRecord(clock, meeting=True)

    def _note(self, kind: int, start: float, length: float) -> None:
        if length > 0:
            self._record.spans.append(Span(KINDS[kind], start, length))

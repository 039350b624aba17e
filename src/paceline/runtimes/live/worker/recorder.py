"""The records of a worker's steps, split into transfer and wait; replicas that have drifted are found as well."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from paceline.errors import RunFailed
from paceline.records.events import EventWriter
from paceline.records.spans import Span, SpanKind, StepRecord, TimeLedger
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.strategies.base import Worker

_PRIME = 2**53 - 111


@torch.no_grad()
def parameter_hash(params: Tensor) -> int:
    """A number below 2**53 that differs where the bits of the parameters do, except with a chance of 2**-53.

    A permutation of the values has the same hash. One pass over the memory, in any order. A NaN counts the same
    whatever its bits, for these depend on the order of a sum.
    """
    plain = params if torch.isfinite(params.sum()) else params.nan_to_num()
    if plain.element_size() == 8:
        return int(plain.view(torch.int64).sum()) % _PRIME
    # Two at a time: torch adds 64-bit words 20 times as fast as it widens 32-bit ones.
    even = plain.numel() // 2 * 2
    words, last = plain[:even].view(torch.int64), plain[even:].view(torch.int32)
    return (int(words.sum()) + int(last.sum())) % _PRIME


def exact_hash(params: Tensor) -> str:
    return hashlib.sha256(params.detach().nan_to_num().cpu().contiguous().numpy().tobytes()).hexdigest()


def find_drift(comm: SoloComm, params: Tensor) -> str:
    """Which ranks have other parameters than the majority; without one, all are named. Empty: all are equal."""
    hashes = comm.exchange(exact_hash(params))
    counts = Counter(hashes).most_common()
    if len(counts) == 1:
        return ""
    if counts[0][1] == counts[1][1]:
        return f"the parameters of {show_ranks(range(len(hashes)))} differ"
    odd = [rank for rank, one in enumerate(hashes) if one != counts[0][0]]
    even = [rank for rank, one in enumerate(hashes) if one == counts[0][0]]
    return f"the parameters of {show_ranks(odd)} are not those of {show_ranks(even)}"


def show_ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


SETTLE_AFTER = 256
"""Exchanges after which replicas are compared outside a sync point; and the most that are kept before they are settled:
it bounds what a killed worker loses."""

FIRST_SETTLE = 16
"""Exchanges that are kept before how long one takes is known."""

SETTLE_EVERY = 1.0
"""Seconds between two settlements, about: those who follow a run read what was settled."""

LONG = 1024
"""Steps after which the next exchange is settled at once, so that the steps after it need not be kept."""


def _exchanges_within(seconds: float, count: int, passed: float) -> int:
    """How many exchanges to keep for about so many seconds, where ``count`` of them came in ``passed`` seconds."""
    return max(1, min(SETTLE_AFTER, int(seconds * count / max(passed, 1e-6))))


class StepRecorder:
    """Spans have no gaps. How much of an exchange was waiting is known only when all have compared, in ``settle``."""

    def __init__(
        self,
        comm: SoloComm,
        events: EventWriter,
        ledger: TimeLedger,
        begun: float = 0.0,
        replica: Worker | None = None,
    ) -> None:
        """``begun`` is the run's time so far.

        A ``replica`` is a worker whose parameters must equal those of all others, to the last bit; they are compared
        whenever exchanges are.
        """
        self._comm, self._events, self._ledger, self._replica = comm, events, ledger, replica
        self._equal_at = replica.clock if replica else 0
        self._last = perf_counter()
        self._origin = self._last - begun
        self._record = StepRecord(step=0, is_step=False)
        self._warm = False
        self._closed: list[StepRecord] = []
        self._exchanges: list[tuple[StepRecord, int]] = []
        self._seen = self._settled_at = 0
        self._settle_after, self._settled = FIRST_SETTLE, self._last
        self._compared = 0
        """Exchanges since the replicas were last compared."""

    @property
    def now(self) -> float:
        return perf_counter() - self._origin

    def mark(self, kind: SpanKind, until: float | None = None) -> None:
        """What was done since the last mark, to this moment or to an earlier reading of the clock."""
        now = perf_counter() if until is None else until
        self._record.spans.append(Span(kind, self._last - self._origin, now - self._last))
        self._last = now

    def exchanged(self, sent: int, received: int) -> None:
        """The time since the last mark was spent in an exchange with all other workers."""
        self._exchanges.append((self._record, len(self._record.spans)))
        self.mark("communicate")
        self.moved(sent, received)
        if len(self._exchanges) >= self._settle_after:
            self.settle(compare=self._compared + len(self._exchanges) >= SETTLE_AFTER)

    def moved(self, sent: int, received: int) -> None:
        self._record.sent += sent
        self._record.received += received

    def answered(self, held: float) -> None:
        """The time since the last mark was spent on an answer, ``held`` seconds of it waiting for other workers."""
        now = perf_counter()
        self.mark("communicate", max(self._last, now - held))
        if held > 0:
            self.mark("wait", now)

    def hide(self, start: float, end: float) -> None:
        """Traffic overlapped with backward between these readings of the clock."""
        if end > start:
            self._record.hidden.append(Span("communicate", start - self._origin, end - start))

    def count(self, samples: int) -> None:
        self._record.samples += samples
        self._record.is_step = True
        self._record.warm_up, self._warm = not self._warm, True

    def close(self, step: int, until: float | None = None) -> None:
        """What was done since the last mark, to now or to an earlier reading of the clock, is of no kind."""
        if not self._record.spans:
            return
        if until != self._last:
            self.mark("other", until)
        self._record.step = step
        self._closed.append(self._record)
        self._record = StepRecord(step=step, is_step=False)
        if not self._exchanges:
            self._write_closed()

    def pace(self, progress: int) -> None:
        """Settle the exchange that ended many steps without any; called at the start of every step.

        All workers do so alike: just after an exchange, progress counts what all of them know.
        """
        if len(self._exchanges) == self._seen:
            return
        self._seen = len(self._exchanges)
        if progress - self._settled_at >= LONG:
            self._settled_at = progress
            self.settle()

    def settle(self, *, compare: bool = True) -> None:
        """Compare exchanges: the last worker to arrive at one did not wait, so the shortest time is the transfer's.

        With ``compare`` replicas are compared too, which reads all parameters; all workers do so alike.
        """
        if self._comm.workers > 1:
            self._compare(self._replica if compare else None)
        self._write_closed()
        self._events.flush()

    def _compare(self, replica: Worker | None) -> None:
        lengths = [record.spans[place].length for record, place in self._exchanges]
        # Of a number and its negative, the minima tell whether it is the same on all workers.
        number = float(parameter_hash(replica.params)) if replica else 0.0
        passed = self._last - self._settled
        numbers = torch.tensor([*lengths, -passed, number, -number], dtype=torch.float64)
        self._comm.minimum(numbers)
        *smallest, longest, least, negative = numbers.tolist()
        if replica:
            self._check_drift(replica, equal=least == -negative)
        self._compared = 0 if replica else self._compared + len(lengths)
        if lengths:  # all workers have the same numbers here, so they settle at the same exchange
            self._settle_after = _exchanges_within(SETTLE_EVERY, len(lengths), -longest)
        split_exchanges(self._exchanges, smallest)
        self._exchanges.clear()
        self._seen = 0
        self.mark("wait")
        self._settled = self._last

    def _check_drift(self, me: Worker, *, equal: bool) -> None:
        if not equal:
            raise RunFailed(
                f"the workers no longer train the same model: at step {me.clock} "
                f"{find_drift(self._comm, me.params)}, and at step {self._equal_at} all were equal"
            )
        self._equal_at = me.clock

    @property
    def pending(self) -> bool:
        return any(span.kind != "wait" for span in self._record.spans)

    def give_up(self, step: int) -> None:
        """Write all records, unsplit; a run that resumes drops a step whose update was not applied."""
        self._exchanges.clear()
        applied = any(span.kind == "apply" for span in self._record.spans)
        self.close(step if applied or not self._record.is_step else step + 1)
        self._write_closed()

    def _write_closed(self) -> None:
        for record in self._closed:
            self._ledger.add(record)
            self._events.append(record)
        self._closed.clear()


def split_exchanges(exchanges: Sequence[tuple[StepRecord, int]], transfers: Sequence[float]) -> None:
    """Divide spans, each a record and a place in it, into the wait for others and the transfer after it.

    All exchanges of a record, in their order: a span that becomes two moves those behind it.
    """
    for (record, place), transfer in reversed([*zip(exchanges, transfers, strict=True)]):
        kind, start, length = record.spans[place]
        if (wait := length - transfer) > 0:
            split = Span("wait", start, wait), Span(kind, start + wait, transfer)
            record.spans[place : place + 1] = split

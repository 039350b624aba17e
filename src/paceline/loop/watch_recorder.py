"""Records of a worker whose exchanges are its script's own: it compares their lengths with others and never waits."""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, sleep

from torch.distributed.distributed_c10d import Store

from paceline.jobs.step import StepPhase
from paceline.loop.moments import Moments
from paceline.records.events import EventWriter
from paceline.records.spans import StepRecord, TimeLedger
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.recorder import SETTLE_AFTER, SETTLE_EVERY, StepRecorder, split_exchanges

MOST_KEPT = 16 * SETTLE_AFTER
"""Exchanges that wait to be compared. With more of them, some worker has long gone its own way."""
_KEPT_IN_STORE = 16
"""Messages of a worker that stay in the store: rank 0 reads them as they come."""


class ExchangeLengths:
    """The shortest time that any worker took for each exchange, by the store of the script's process group.

    Worker r posts ``lengths/r/0``, ``lengths/r/1`` and so on, rank 0 posts their minima, and all read these.
    """

    def __init__(self, store: Store, rank: int, workers: int) -> None:
        self._store, self._rank = store, rank
        self._posted = self._minima = self._taken = 0
        everybody = range(workers if rank == 0 else 0)
        self._read, self._known = [0 for _ in everybody], [deque[float]() for _ in everybody]

    def post(self, lengths: Sequence[float]) -> None:
        self._put(f"lengths/{self._rank}", self._posted, lengths)
        self._posted += 1

    def take(self, *, last: bool = False) -> list[float]:
        """The minima that have come since the last call, in the order of the exchanges.

        Rank 0 reads what all have posted, which is one question to the store; the ``last`` time it asks for each.
        """
        if self._rank == 0:
            ranks = range(len(self._known))
            for some in [[rank] for rank in ranks] if last else [ranks]:
                self._read_from(some)
            self._post_minima()
        found: list[float] = []
        while self._store.check([f"minima/{self._taken}"]):
            found += _unpack(self._store.get(f"minima/{self._taken}"))
            self._taken += 1
        return found

    def _read_from(self, ranks: Sequence[int]) -> None:
        while self._store.check(keys := [f"lengths/{rank}/{self._read[rank]}" for rank in ranks]):
            for rank, packed in zip(ranks, self._store.multi_get(keys), strict=True):
                self._known[rank].extend(_unpack(packed))
                self._read[rank] += 1

    def _post_minima(self) -> None:
        if many := min(map(len, self._known)):
            self._put(
                "minima", self._minima, [min(one.popleft() for one in self._known) for _ in range(many)]
            )
            self._minima += 1

    def _put(self, name: str, number: int, lengths: Sequence[float]) -> None:
        self._store.set(f"{name}/{number}", struct.pack(f"{len(lengths)}d", *lengths))  # type: ignore[arg-type]
        if number >= _KEPT_IN_STORE:
            self._store.delete_key(f"{name}/{number - _KEPT_IN_STORE}")


def _unpack(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"{len(packed) // 8}d", packed)


class WatchRecorder(StepRecorder):
    """Makes records of the ``moments`` that were noted.

    Without ``lengths`` there are no other workers, or exchanges are not seen.
    """

    def __init__(
        self,
        lengths: ExchangeLengths | None,
        events: EventWriter,
        ledger: TimeLedger,
        moments: Moments,
        begun: float = 0.0,
    ) -> None:
        super().__init__(SoloComm(), events, ledger, begun)
        self._lengths, self._minima = lengths, deque[float]()
        self._written = self._last
        self.steps = self.samples = 0
        self._posted = 0
        """How many of the exchanges that are kept the others have been told of."""
        self._moments = moments
        self._phase: StepPhase = "data"
        self._has_gradient = self._in_step = False
        self._backwards = self._step_samples = 0
        """How many backwards are in each other."""

    def record_noted(self) -> None:
        """Find out what the moments mean that were noted since the last call."""
        for note, moment in self._moments.take():
            if isinstance(note, int):
                self._forward_begins(note, moment)
            elif note == "backward":
                self._backward_begins(moment)
            elif note == "returned":
                self._backwards -= 1
                if not self._backwards:
                    self._backward_ends(moment)
            elif note == "step":
                if not self._has_gradient:
                    self.mark("data", moment)
                self._in_step = True
            elif note == "stepped":
                self._step_ends(moment)
            elif note == "gradient":
                self._backward_ends(moment)
            elif note == "evaluated":
                self._evaluated(moment)
            else:
                self.exchanged(*note, moment)

    def _forward_begins(self, samples: int, moment: float) -> None:
        if self._phase != "backward":  # in which checkpointing repeats a forward
            self._step_samples += samples
            if self._phase == "data":
                # The optimizer's step may compute gradients itself.
                self.mark("apply" if self._in_step else "data", moment)
                self._phase = "forward"

    def _backward_begins(self, moment: float) -> None:
        """Of a loss, which belongs to forward, or of a second one; checkpointing calls backward in backward."""
        self._backwards += 1
        if self._phase == "forward":
            self.mark("forward", moment)
            self._phase = "backward"
        elif self._has_gradient:
            self._phase = "backward"

    def _backward_ends(self, moment: float) -> None:
        if self._phase == "backward":
            self.mark("backward", moment)
            self._phase, self._has_gradient = "data", True

    def _step_ends(self, moment: float) -> None:
        self.mark("apply", moment)
        self.count(self._step_samples)
        self.samples += self._step_samples
        self.steps += 1
        self.close(self.steps, moment)
        self._phase, self._has_gradient, self._in_step, self._step_samples = "data", False, False, 0

    def _evaluated(self, moment: float) -> None:
        """What was done since the last step was an evaluation, and belongs to none."""
        if self._phase == "data" and not (self._in_step or self._has_gradient):
            self.mark("evaluate", moment)
            self.close(self.steps, moment)

    def exchanged(self, sent: int, received: int, until: float | None = None) -> None:
        """As a ``StepRecorder`` does; they are compared when their record is closed."""
        if self._lengths:
            self._exchanges.append((self._record, len(self._record.spans)))
        self.mark("communicate", until)
        self.moved(sent, received)

    def close(self, step: int, until: float | None = None) -> None:
        super().close(step, until)
        late = self._last - self._settled >= SETTLE_EVERY
        if self._exchanges and (late or len(self._exchanges) - self._posted >= SETTLE_AFTER):
            self.settle()

    def settle(self, *, compare: bool = True) -> None:  # noqa: ARG002
        """Tell the others of new exchanges, and split those that all have compared by now."""
        self._settled = self._last
        if self._lengths:
            new = self._exchanges[self._posted :]
            lengths = [record.spans[place].length for record, place in new]
            with self._while_store_lasts():
                self._lengths.post(lengths)
                self._posted = len(self._exchanges)
                self._write_compared(self._lengths)

    def finish(self, patience: float) -> None:
        """Write what is left once the others have compared it, or when they have not for ``patience`` seconds."""
        self.record_noted()
        self.close(self.steps)
        self.settle()
        deadline = perf_counter() + patience
        while self._exchanges and self._lengths and perf_counter() < deadline:
            sleep(0.002)
            with self._while_store_lasts():
                self._write_compared(self._lengths, last=True)
        self.give_up(self.steps)
        self._write_all()

    def _write_closed(self) -> None:
        if self._last - self._written >= SETTLE_EVERY or len(self._closed) >= SETTLE_AFTER:
            self._write_all()

    def _write_all(self) -> None:
        super()._write_closed()
        self._events.flush()
        self._written = self._last

    @contextmanager
    def _while_store_lasts(self) -> Iterator[None]:
        """Its host may be gone: then exchanges stay as they are."""
        try:
            yield
        except RuntimeError:
            self._stop_comparing()

    def _stop_comparing(self) -> None:
        self._lengths = None
        self._exchanges.clear()

    def _write_compared(self, lengths: ExchangeLengths, *, last: bool = False) -> None:
        self._minima += lengths.take(last=last)
        many = min(len(self._minima), len(self._exchanges))
        while 0 < many < len(self._exchanges) and self._exchanges[many][0] is self._exchanges[many - 1][0]:
            many -= 1  # the exchanges of a record are split together
        split_exchanges(self._exchanges[:many], [self._minima.popleft() for _ in range(many)])
        del self._exchanges[:many]
        self._posted -= many
        if len(self._exchanges) > MOST_KEPT:
            self._stop_comparing()
        self._write_before(self._exchanges[0][0] if self._exchanges else None)

    def _write_before(self, waiting: StepRecord | None) -> None:
        at = (place for place, record in enumerate(self._closed) if record is waiting)
        place = next(at, len(self._closed))
        kept, self._closed = self._closed[place:], self._closed[:place]
        self._write_all()
        self._closed = kept

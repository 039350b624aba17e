"""Records of a worker whose exchanges are its script's own: it compares their lengths with others and never waits."""

import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, sleep

from torch.distributed.distributed_c10d import Store

from paceline.records.events import EventWriter
from paceline.records.spans import Span, SpanKind, StepRecord, TimeLedger
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.recorder import SETTLE_AFTER, SETTLE_EVERY, StepRecorder, split_exchanges

MOST_KEPT = 16 * SETTLE_AFTER
"""Exchanges that wait to be compared. With more of them, some worker has long gone its own way."""
MOST_NOTED = 4096
"""Moments that are noted before they become records."""
Note = SpanKind | tuple[int, int] | int | None
"""What has ended: a phase, an exchange with the bytes sent and received, a step with its samples, or no step."""
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
    """Notes moments, and makes records of them about once a second.

    Many at once: the less of ours runs between two steps, the more of the script's stays in the caches. Without
    ``lengths`` there are no other workers, or exchanges are not seen.
    """

    def __init__(
        self, lengths: ExchangeLengths | None, events: EventWriter, ledger: TimeLedger, begun: float = 0.0
    ) -> None:
        super().__init__(SoloComm(), events, ledger, begun)
        self._lengths, self._minima = lengths, deque[float]()
        self._written = self._noted = self._last
        self._posted = self.steps = 0
        """How many of the exchanges that are kept the others have been told of, and how many steps there were."""
        self._notes: list[Note] = []
        self._moments = array("d")
        self.note, self.moment = self._notes.append, self._moments.append
        """What has ended, and the reading of the clock. Each note has a moment; no frame of ours is on the way."""

    def note_step(self, samples: int) -> bool:
        """Now ends a step, and its apply; return whether it is time for ``record_noted``."""
        now = perf_counter()
        self._notes += ("apply", samples)
        self.moment(now)
        self.moment(now)
        return now - self._noted >= SETTLE_EVERY or len(self._notes) >= MOST_NOTED

    def record_noted(self) -> None:
        notes, moments = self._notes[:], self._moments[:]
        self._notes.clear()
        del self._moments[:]
        for what, moment in zip(notes, moments, strict=True):
            if isinstance(what, str):  # as ``mark`` does it, in less time
                self._record.spans.append(Span(what, self._last - self._origin, moment - self._last))
                self._last = moment
            elif isinstance(what, tuple):
                self.exchanged(*what, moment)
            else:
                if what is not None:
                    self.count(what)
                    self.steps += 1
                self.close(self.steps, moment)
        self._noted = self._last

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

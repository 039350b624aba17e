"""A worker or server in virtual time: its program, what it waits for and where its time goes."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Self

from torch import Tensor

from paceline.costs.stated import GradientTimes
from paceline.records.servers import ServerTotals
from paceline.records.spans import KINDS, Span, StepRecord, TimeLedger
from paceline.runtimes.compression import Compressor
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.served_compression import PlainMessages
from paceline.runtimes.session import Ending, Session
from paceline.runtimes.virtual.timeline import Interval
from paceline.strategies.effects import (
    AllReduce,
    Broadcast,
    BucketedMean,
    Gradient,
    Peer,
    Program,
    Receive,
    StartAllReduce,
    Wait,
)
from paceline.units import show_seconds

DATA, FORWARD, BACKWARD, COMMUNICATE, WAIT, APPLY, EVALUATE, CHECKPOINT, _ = range(len(KINDS))
SHOWN = 8


class StepLedger:
    """A worker's open step, or what lies between two steps; it is counted, and may be kept, when it closes."""

    __slots__ = ("_hidden", "_keep", "_seconds", "record", "times")

    def __init__(self, keep: Callable[[StepRecord], None] | None = None) -> None:
        """``keep`` gets every step and everything between steps; without it only sums are kept, and no spans."""
        self.times, self._keep = TimeLedger(), keep
        self._open(0)

    def _open(self, clock: int) -> None:
        self.record = StepRecord(clock, is_step=False)
        self._seconds, self._hidden = [0.0] * len(KINDS), 0.0

    def gradient(self, start: float, times: GradientTimes, samples: int) -> None:
        seconds = self._seconds
        data, forward, backward = times
        seconds[DATA] += data
        seconds[FORWARD] += forward
        seconds[BACKWARD] += backward
        self.record.samples = samples
        self.record.is_step = True
        if self._keep is not None:
            for kind, length in enumerate(times):
                self._note(kind, start, length)
                start += length

    def unfinished(self, start: float, times: GradientTimes, end: float) -> None:
        """Count a mini-batch that is cut short: its time counts, its samples do not."""
        for kind, length in enumerate(times):
            self.span(kind, start, max(0.0, min(length, end - start)))
            start += length

    def span(self, kind: int, start: float, length: float) -> None:
        self._seconds[kind] += length
        if self._keep is not None:
            self._note(kind, start, length)

    def exchange(self, start: float, wait: float, communicate: float, sent: int, received: int) -> None:
        seconds, record = self._seconds, self.record
        seconds[WAIT] += wait
        seconds[COMMUNICATE] += communicate
        record.sent += sent
        record.received += received
        if self._keep is not None:
            self._note(WAIT, start, wait)
            self._note(COMMUNICATE, start + wait, communicate)

    def overlap(self, transfers: Sequence[Interval], seconds: float) -> None:
        self._hidden += seconds
        if self._keep is not None:
            self.record.hidden += [Span("communicate", start, stop - start) for start, stop in transfers]

    def moved(self, sent: int, received: int) -> None:
        self.record.sent += sent
        self.record.received += received

    def close(self, clock: int) -> None:
        record = self.record
        self.times.count(record, self._seconds, self._hidden)
        if self._keep is not None and (record.spans or record.sent or record.received or record.is_step):
            record.step = clock
            if not record.is_step:
                record.samples = 0
            self._keep(record)
        self._open(clock)

    def _note(self, kind: int, start: float, length: float) -> None:
        if length > 0:
            self.record.spans.append(Span(KINDS[kind], start, length))


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One worker or server.

    ``me`` is the Worker or Server that its program sees; its ``now`` is the node's own clock, which may be ahead of
    the timeline's as long as the node does nothing that reaches others.
    """

    peer: Peer
    host: int
    me: Any
    program: Program
    replica: Any = None
    """The Replica or ParameterShard that computes; None where only time is simulated."""
    messages: PlainMessages = field(default_factory=PlainMessages)
    """How what it sends is encoded, and what it receives decoded."""
    compressor: Compressor | None = None
    """Of a worker that computes, where a codec is in use and workers reduce among themselves."""
    session: Session | None = None
    ledger: StepLedger = field(default_factory=StepLedger)
    answer: Any = None
    started: list[Any] = field(default_factory=list)
    """Reductions that it has started and not waited for."""
    postponed: Any = None
    """A gradient that is computed first when the node is resumed."""
    inbox: deque[Envelope] = field(default_factory=deque)
    waits_for: Any = None
    gone: bool = False
    ending: Ending | None = None
    begun: float = 0.0
    ended: float = 0.0
    mean: BucketedMean | None = None
    buckets: Any = None
    prices: tuple[tuple[GradientTimes, int], ...] = ()
    """The gradient's times and samples in a full step and in an epoch's last, where steps cost the same."""
    apply_seconds: float = 0.0
    starts: float = 0.0
    dies: float = inf
    ends: float = inf
    """When it dies or the run is over: a gradient that would take longer is not finished."""
    steps: float = inf
    totals: ServerTotals = field(default_factory=ServerTotals)
    tick: float = -1.0
    """The last time for which a server has scheduled a tick."""

    def __str__(self) -> str:
        return f"{self.peer.role} {self.peer.rank}"


@dataclass(slots=True, eq=False)
class ReductionPart:
    """One worker's part in a reduction: what it asked for, and when."""

    node: Node
    effect: Any
    values: Tensor | None
    """What is reduced in place, where the effect has a tensor."""
    clock: int
    at: float

    @classmethod
    def of(cls, node: Node, effect: Any, values: Tensor | None = None) -> Self:
        return cls(node, effect, values, node.me.clock, node.me.now)


def explain_deadlock(workers: Sequence[Node]) -> str:
    waiting = [worker for worker in workers if not worker.gone]
    parts = [
        f"{one} waits for {describe(one.waits_for)} since {show_seconds(one.me.now)}, at step {one.me.clock}"
        for one in waiting[:SHOWN]
    ]
    if len(waiting) > SHOWN:
        parts.append(f"{len(waiting) - SHOWN} more wait")
    if gone := [str(worker) for worker in workers if worker.gone]:
        parts.append(f"{', '.join(gone[:SHOWN])}{', ...' * (len(gone) > SHOWN)} left before")
    return f"the run cannot go on, every worker waits: {'; '.join(parts)}"


def describe(effect: Any) -> str:
    if isinstance(effect, StartAllReduce):
        return f"has started an all-reduce of {effect.tensor.nbytes} bytes"
    if isinstance(effect, AllReduce | Broadcast):
        what = "an all-reduce" if isinstance(effect, AllReduce) else "a broadcast"
        return f"the others in {what} of {effect.tensor.nbytes} bytes"
    names = {
        Gradient: "the others' gradients",
        Receive: "a message",
        Wait: "the others in what it has started",
    }
    return names.get(type(effect), type(effect).__name__)

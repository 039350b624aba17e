"""A server's end of the wire: one port that only the run's workers get through to."""

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from paceline.runtimes.live.addresses import resolve
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.wire import encoding as wire
from paceline.runtimes.live.wire import memory
from paceline.runtimes.live.wire.channel import Channel, Landing, Limits
from paceline.runtimes.live.wire.control import Beat, Died, Hello, Refusal
from paceline.runtimes.live.wire.encoding import LIMIT, Announced, Expected, Refused
from paceline.runtimes.live.wire.kinds import LONGEST_QUESTION
from paceline.runtimes.live.wire.listener import Listener
from paceline.runtimes.live.wire.memory import Mapped
from paceline.runtimes.live.wire.shape import Shape
from paceline.strategies.messages import Model

WAITING = 8
"""Messages of one worker that may wait; a worker that keeps to its program has one or two."""
_UNKNOWN = "this server does not know the worker, or has given it up after a long silence"


class Parcel(NamedTuple):
    """A message that has come."""

    channel: Channel
    """The connection, for ``bind`` and ``reply``."""
    worker: int
    """-1 where the connection is not bound to a worker."""
    flags: int
    message: Any
    depth: int
    """Messages that were waiting when this one was taken, itself included."""


@dataclass(slots=True)
class _Caller:
    """A worker that is known here."""

    channel: Channel
    heard: float = field(default_factory=time.monotonic)
    memory: Mapped | None = None


class ServerSocket:
    """Receives from all workers and sends to each, without ever waiting for one.

    Whatever does not fit is dropped, counted in ``refused`` and survived. A connection that is not bound to a worker
    may say Hello, Beat and Died only. A thread reads while the server computes; ``_lock`` is for what both look at.
    """

    def __init__(
        self, secret: Secret, host: str, shape: Shape, rank: int, servers: int, limit: int = LIMIT
    ) -> None:
        """Listen at a free port of ``host``, an address of this one; ``shape`` is of the part that is kept."""
        self._shape, self._rank, self._servers = shape, rank, servers
        self._expected = Expected.at_server(shape, limit)
        self._callers: dict[int, _Caller] = {}
        self._workers: dict[Channel, int] = {}
        self._waiting: deque[tuple[Channel, wire.Letter]] = deque()
        self._of: Counter[Channel] = Counter()
        self._refused: Counter[str] = Counter()
        self._lock = threading.Condition()
        limits = Limits(2 * LONGEST_QUESTION, 2 * max(limit, shape.length * shape.dtype.itemsize))
        self._listener = Listener(wire_key(secret), resolve(host, 0), self._announce, limits)

    @property
    def endpoint(self) -> str:
        """Where workers connect to."""
        return self._listener.endpoint

    @property
    def refused(self) -> Counter[str]:
        """Why something was refused, to how often."""
        with self._lock:
            return self._refused + self._listener.refused

    def receive(self, timeout: float) -> Parcel | None:
        """The next message, or None if there is none within so many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._waiting, timeout)
            if self._listener.failure is not None:
                raise self._listener.failure
            if not self._waiting:
                return None
            depth = len(self._waiting)
            channel, (flags, message) = self._waiting.popleft()
            self._of[channel] -= 1
            if not self._of[channel]:
                del self._of[channel]
            return Parcel(channel, self._workers.get(channel, -1), flags, message, depth)

    def bind(self, channel: Channel, worker: int) -> None:
        """From now on this connection is that worker's, and no other is."""
        with self._lock:
            self.forget(worker)
            self._callers[worker] = _Caller(channel)
            self._workers[channel] = worker

    def knows(self, worker: int) -> bool:
        """Whether a connection is that worker's."""
        return worker in self._callers

    def attach(self, worker: int, hello: Hello) -> bool:
        """Map the memory that a bound worker's Hello tells of; from then on tensors travel through it."""
        self._callers[worker].memory = memory.attach(hello, self._shape, self._rank, self._servers)
        return self._callers[worker].memory is not None

    def send(self, worker: int, message: Any, flags: int = 0) -> bool:
        """Hand a message over; its tensors may change at once. False: the worker is gone or does not read."""
        caller = self._callers.get(worker)
        if caller is None:
            return False
        shared = caller.memory if isinstance(message, Model) else None
        packet = wire.pack(message, flags, shared.deposit if shared else wire.nowhere)
        return self._listener.send(caller.channel, packet, WAITING)

    def reply(self, channel: Channel, message: Any, flags: int = 0) -> bool:
        """Send to a connection that need not be bound."""
        return self._listener.send(channel, wire.pack(message, flags), WAITING)

    def heard(self, worker: int) -> float:
        """When a worker last said anything, a beat included, by the monotonic clock; KeyError if it is not bound."""
        return self._callers[worker].heard

    def forget(self, worker: int) -> None:
        """The worker is gone: drop what it has said, and its memory."""
        with self._lock:
            caller = self._callers.pop(worker, None)
            if caller is None:
                return
            del self._workers[caller.channel]
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not caller.channel)
            self._of.pop(caller.channel, None)

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has gone out or so many seconds are over."""
        self._listener.close(linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announce(self, channel: Channel, header: memoryview, size: int) -> Landing:
        """Called by the listener's thread: where the body of a message goes."""
        try:
            with self._lock:
                caller = self._caller_for(channel, wire.kind_of(header))
                announced = wire.announce(header, size, self._expected, caller.memory if caller else None)
        except Refused as refusal:
            self._refuse(channel, refusal)
            return Landing(None, lambda: None)
        return Landing(wire.bytes_of(announced.body), lambda: self._take(channel, announced))

    def _take(self, channel: Channel, announced: Announced) -> None:
        """Called by the listener's thread: a message is there."""
        message = announced.letter.message
        try:
            announced.check()
            with self._lock:
                caller = self._caller_for(channel, type(message))
                if isinstance(message, Beat):
                    caller = self._callers.get(message.rank)
                else:
                    self._waiting.append((channel, announced.letter))
                    self._of[channel] += 1
                    self._lock.notify()
                if caller is not None:
                    caller.heard = time.monotonic()
        except Refused as refusal:
            self._refuse(channel, refusal)

    def _caller_for(self, channel: Channel, kind: type) -> _Caller | None:
        """Who says something of this kind, or Refused."""
        worker = self._workers.get(channel)
        if worker is None and kind not in (Hello, Beat, Died):
            raise Refused("unknown worker")
        if self._of[channel] >= WAITING:
            raise Refused("too many")
        return None if worker is None else self._callers[worker]

    def _refuse(self, channel: Channel, refusal: Refused) -> None:
        if refusal.reason == "unknown worker":
            self.reply(channel, Refusal(_UNKNOWN))
        with self._lock:
            self._refused[refusal.reason] += 1

"""A server's end of the wire: one port that only the run's workers get through to."""

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from paceline.runtimes.live.addresses import resolve
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.wire.channel import Channel, Destination, MessageLimits
from paceline.runtimes.live.wire.encoding import (
    MAX_REQUEST,
    MAX_TENSOR,
    Accepted,
    Envelope,
    MessageRefused,
    bytes_of,
    check_body,
    kind_of,
    pack,
    unpack,
)
from paceline.runtimes.live.wire.listener import Listener
from paceline.runtimes.live.wire.messages import FROM_UNBOUND, TO_SERVER, Alive, Hello, Refusal
from paceline.runtimes.live.wire.shared_flat import MappedFlat, attach
from paceline.strategies.messages import Model

MAX_WAITING = 8
"""Messages of one worker that may wait; a worker that follows its program has one or two."""
_UNKNOWN = "this server does not know the worker, or has given it up after a long silence"


@dataclass(slots=True)
class BoundWorker:
    """A worker that has said Hello."""

    channel: Channel
    heard: float = field(default_factory=time.monotonic)
    memory: MappedFlat | None = None


class ServerSocket:
    """Receives from all workers and sends to each, without ever waiting for one.

    Whatever does not fit is dropped and counted in ``refused``. A thread reads while the server computes; ``_lock``
    is for what both use.
    """

    def __init__(self, secret: Secret, host: str, shard: Tensor, rank: int, servers: int) -> None:
        """Listen at a free port of ``host``, an address of this one; ``shard`` is what this server keeps."""
        self._shard, self._rank, self._servers = shard, rank, servers
        self._accepted = Accepted(kinds=TO_SERVER, length=shard.numel(), dtype=shard.dtype)
        self._workers: dict[int, BoundWorker] = {}
        self._ranks: dict[Channel, int] = {}
        self._waiting: deque[Envelope] = deque()
        self._waiting_of: Counter[Channel] = Counter()
        self._refused: Counter[str] = Counter()
        self._lock = threading.Condition()
        limits = MessageLimits(2 * MAX_REQUEST, 2 * max(MAX_TENSOR, shard.nbytes))
        self._listener = Listener(wire_key(secret), resolve(host, 0), self._announce, limits)

    @property
    def endpoint(self) -> str:
        return self._listener.endpoint

    @property
    def refused(self) -> Counter[str]:
        """How often something was refused, by reason."""
        with self._lock:
            return self._refused + self._listener.refused

    def receive(self, timeout: float) -> Envelope | None:
        """The next message, or None if there is none within ``timeout`` seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._waiting, timeout)
            if self._listener.failure is not None:
                raise self._listener.failure
            if not self._waiting:
                return None
            depth = len(self._waiting)
            envelope = self._waiting.popleft()
            assert envelope.channel is not None
            self._waiting_of[envelope.channel] -= 1
            if not self._waiting_of[envelope.channel]:
                del self._waiting_of[envelope.channel]
            return envelope._replace(sender=self._ranks.get(envelope.channel, -1), depth=depth)

    def bind(self, envelope: Envelope, worker: int) -> None:
        """From now on the sender's connection is that worker's, and no other is."""
        assert envelope.channel is not None
        with self._lock:
            self.forget(worker)
            self._workers[worker] = BoundWorker(envelope.channel)
            self._ranks[envelope.channel] = worker

    def knows(self, worker: int) -> bool:
        return worker in self._workers

    def attach(self, worker: int, hello: Hello) -> bool:
        """Map the memory that a bound worker's Hello describes; from then on tensors travel through it."""
        memory = attach(hello, self._shard, self._rank, self._servers)
        self._workers[worker].memory = memory
        return memory is not None

    def send(self, worker: int, message: Any, *, stop: bool = False) -> bool:
        """Send a message; its tensors may change at once. False: the worker is gone or does not read."""
        bound = self._workers.get(worker)
        if bound is None:
            return False
        if bound.memory is not None and isinstance(message, Model):
            packet = pack(message, stop=stop, find=bound.memory.deposit)
        else:
            packet = pack(message, stop=stop)
        return self._listener.send(bound.channel, packet, MAX_WAITING)

    def reply(self, envelope: Envelope, message: Any) -> bool:
        """Answer a sender whose connection need not be bound."""
        assert envelope.channel is not None
        return self._listener.send(envelope.channel, pack(message), MAX_WAITING)

    def heard(self, worker: int) -> float:
        """When anything of a worker last arrived, by the monotonic clock; KeyError if it is not bound."""
        return self._workers[worker].heard

    def forget(self, worker: int) -> None:
        """The worker is gone: drop its messages that wait, and its memory."""
        with self._lock:
            bound = self._workers.pop(worker, None)
            if bound is None:
                return
            del self._ranks[bound.channel]
            self._waiting = deque(each for each in self._waiting if each.channel is not bound.channel)
            self._waiting_of.pop(bound.channel, None)

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has gone out or after ``linger`` seconds."""
        self._listener.close(linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announce(self, channel: Channel, header: memoryview, size: int) -> Destination:
        """Called by the listener's thread: where the body of a message goes."""
        try:
            with self._lock:
                bound = self._check_sender(channel, kind_of(header))
                envelope, body = unpack(header, size, self._accepted, bound.memory if bound else None)
        except MessageRefused as refusal:
            self._refuse(channel, refusal)
            return Destination(None, lambda: None)
        return Destination(
            bytes_of(body), lambda: self._take(channel, envelope._replace(channel=channel), body)
        )

    def _take(self, channel: Channel, envelope: Envelope, body: Tensor) -> None:
        """Called by the listener's thread: a message is complete."""
        message = envelope.message
        try:
            check_body(body)
            with self._lock:
                bound = self._check_sender(channel, type(message))
                if isinstance(message, Alive):
                    bound = self._workers.get(message.rank)
                else:
                    self._waiting.append(envelope)
                    self._waiting_of[channel] += 1
                    self._lock.notify()
                if bound is not None:
                    bound.heard = time.monotonic()
        except MessageRefused as refusal:
            self._refuse(channel, refusal)

    def _check_sender(self, channel: Channel, kind: type) -> BoundWorker | None:
        """The worker that this connection belongs to; refuse what it may not send now."""
        worker = self._ranks.get(channel)
        if worker is None and kind not in FROM_UNBOUND:
            raise MessageRefused("unknown worker")
        if self._waiting_of[channel] >= MAX_WAITING:
            raise MessageRefused("too many")
        return None if worker is None else self._workers[worker]

    def _refuse(self, channel: Channel, refusal: MessageRefused) -> None:
        if refusal.reason == "unknown worker":
            self._listener.send(channel, pack(Refusal(_UNKNOWN)), MAX_WAITING)
        with self._lock:
            self._refused[refusal.reason] += 1

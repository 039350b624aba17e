"""A server's end of the wire: one port that only the run's workers get through to."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.wire import encoding
from paceline.runtimes.live.wire.channel import Channel, Destination, MessageLimits
from paceline.runtimes.live.wire.listener import Listener
from paceline.runtimes.live.wire.messages import FROM_UNBOUND, TO_SERVER, Alive, MessageRefused, Refusal
from paceline.runtimes.live.wire.shared_flat import MappedFlat, attach
from paceline.strategies.effects import Peer
from paceline.strategies.messages import Model

MAX_WAITING = 8
"""Messages of one worker that may wait; a worker that follows its program has one or two."""
_UNKNOWN = "this server does not know the worker, or has given it up after a long silence"


@dataclass(slots=True)
class BoundWorker:
    channel: Channel
    memory: MappedFlat | None
    heard: float = field(default_factory=time.monotonic)


class ServerSocket(Listener):
    """Never waits for a worker. ``_lock`` is for what the listener's thread uses too."""

    def __init__(self, secret: Secret, host: str, shard: Tensor, rank: int, servers: int) -> None:
        self._shard, self._rank, self._servers = shard, rank, servers
        self._accepted = encoding.Accepted(kinds=TO_SERVER, shard=shard)
        self._workers: dict[int, BoundWorker] = {}
        self._waiting: deque[Envelope] = deque()
        self._lock = threading.Condition()
        limits = MessageLimits(2 * encoding.MAX_REQUEST, 2 * max(encoding.MAX_TENSOR, shard.nbytes))
        super().__init__(secret.key("wire"), host, 0, limits)

    def receive(self, timeout: float) -> Envelope | None:
        with self._lock:
            self._lock.wait_for(lambda: self._waiting, timeout)
            if self.failure is not None:
                raise self.failure
            if not self._waiting:
                return None
            depth = len(self._waiting)
            envelope = self._waiting.popleft()
            envelope.connection.waiting -= 1
            envelope.sender, envelope.depth = Peer("worker", envelope.connection.rank), depth
            return envelope

    def bind(self, envelope: Envelope) -> bool:
        """From now on the connection of a Hello is that worker's alone; return whether its memory could be mapped."""
        hello, channel = envelope.message, envelope.connection
        memory = attach(hello, self._shard, self._rank, self._servers)
        with self._lock:
            self.forget(hello.rank)
            self._workers[hello.rank] = BoundWorker(channel, memory)
            channel.rank = hello.rank
        return memory is not None

    def send(self, worker: int, message: Any, *, stop: bool = False) -> bool:
        """Send a message; its tensors may change at once. False: the worker is gone or does not read."""
        bound = self._workers.get(worker)
        if bound is None:
            return False
        if bound.memory is not None and isinstance(message, Model):
            packet = encoding.pack(message, stop=stop, find=bound.memory.deposit)
        else:
            packet = encoding.pack(message, stop=stop)
        return self.deliver(bound.channel, packet, MAX_WAITING)

    def reply(self, channel: Channel, message: Any) -> bool:
        return self.deliver(channel, encoding.pack(message), MAX_WAITING)

    def heard(self, worker: int) -> float | None:
        """When anything of a worker last arrived, by the monotonic clock; None if it is not bound."""
        bound = self._workers.get(worker)
        return bound.heard if bound else None

    def forget(self, worker: int) -> None:
        with self._lock:
            if bound := self._workers.pop(worker, None):
                bound.channel.rank, bound.channel.waiting = -1, 0
                self._waiting = deque(one for one in self._waiting if one.connection is not bound.channel)

    def announce(self, channel: Channel, header: memoryview, size: int) -> Destination:
        try:
            with self._lock:
                bound = self._check_sender(channel, encoding.kind_of(header))
                memory = bound.memory if bound else None
                envelope, body = encoding.unpack(
                    header, size, self._accepted, Peer("worker", channel.rank), memory
                )
        except MessageRefused as refusal:
            self._refuse(channel, refusal)
            return Destination(None, lambda: None)
        envelope.connection = channel
        return Destination(encoding.bytes_of(body), lambda: self._take(channel, envelope))

    def _take(self, channel: Channel, envelope: Envelope) -> None:
        message = envelope.message
        try:
            with self._lock:
                bound = self._check_sender(channel, type(message))
                if isinstance(message, Alive):
                    bound = self._workers.get(message.rank)
                else:
                    self._waiting.append(envelope)
                    channel.waiting += 1
                    self._lock.notify()
                if bound is not None:
                    bound.heard = time.monotonic()
        except MessageRefused as refusal:
            self._refuse(channel, refusal)

    def _check_sender(self, channel: Channel, kind: type) -> BoundWorker | None:
        if channel.rank < 0 and kind not in FROM_UNBOUND:
            raise MessageRefused("unknown worker")
        if channel.waiting >= MAX_WAITING:
            raise MessageRefused("too many")
        return self._workers.get(channel.rank)

    def _refuse(self, channel: Channel, refusal: MessageRefused) -> None:
        if refusal.reason == "unknown worker":
            self.reply(channel, Refusal(_UNKNOWN))
        self.refused[refusal.reason] += 1

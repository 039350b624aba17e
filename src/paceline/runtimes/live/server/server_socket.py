"""A server's end of the wire: one port that only the run's workers get through to."""

import threading
import time
from collections import deque
from typing import Any

from torch import Tensor

from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.wire import encoding
from paceline.runtimes.live.wire.channel import DROPPED, Channel, Destination
from paceline.runtimes.live.wire.listener import Listener
from paceline.runtimes.live.wire.messages import FROM_UNBOUND, TO_SERVER, Alive, MessageRefused, Refusal
from paceline.runtimes.live.wire.shared_flat import attach
from paceline.runtimes.served_compression import SliceCodec, is_encoded
from paceline.strategies.effects import Peer
from paceline.strategies.messages import Model

MAX_WAITING = 8
"""Messages of one worker that may wait; a worker that follows its program has one or two."""
_UNKNOWN = "this server does not know the worker, or has given it up after a long silence"


class ServerSocket(Listener):
    """Never waits for a worker. ``_lock`` is for what the listener's thread uses too."""

    def __init__(
        self,
        secret: Secret,
        host: str,
        shard: Tensor,
        rank: int,
        servers: int,
        codec: SliceCodec | None = None,
    ) -> None:
        self._shard, self._rank, self._servers = shard, rank, servers
        self._accepted = encoding.AcceptedMessages(kinds=TO_SERVER, shard=shard, codec=codec)
        self._workers: dict[int, Channel] = {}
        self._waiting: deque[Envelope] = deque()
        self._lock = threading.Condition()
        super().__init__(secret.key("wire"), host, 0, self._accepted.limits)

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
            envelope.sender, envelope.depth = envelope.connection.peer, depth
            return envelope

    def bind(self, envelope: Envelope) -> bool:
        """From now on the connection of a Hello is that worker's alone; return whether its memory could be mapped."""
        hello, channel = envelope.message, envelope.connection
        memory = attach(hello, self._shard, self._rank, self._servers)
        with self._lock:
            self.forget(hello.rank)
            self._workers[hello.rank] = channel
            channel.peer, channel.memory = Peer("worker", hello.rank), memory
        return memory is not None

    def send(self, worker: int, message: Any, *, stop: bool = False) -> bool:
        """Send a message; its tensors may change at once. False: the worker is gone or does not read."""
        channel = self._workers.get(worker)
        return channel is not None and self.reply(channel, message, stop=stop)

    def reply(self, channel: Channel, message: Any, *, stop: bool = False) -> bool:
        exact = isinstance(message, Model) and not is_encoded(message)
        deposit = channel.memory.deposit if channel.memory and exact else None
        return self.deliver(channel, encoding.pack(message, stop=stop, find=deposit), MAX_WAITING)

    def heard(self, worker: int) -> float | None:
        """When a worker's last byte or its last Alive arrived, by the monotonic clock; None if it is not bound."""
        channel = self._workers.get(worker)
        return channel.heard if channel else None

    def forget(self, worker: int) -> None:
        with self._lock:
            if channel := self._workers.pop(worker, None):
                channel.peer, channel.waiting, channel.memory = Peer("worker", -1), 0, None
                self._waiting = deque(one for one in self._waiting if one.connection is not channel)

    def announce(self, channel: Channel, header: memoryview, size: int) -> Destination:
        try:
            with self._lock:
                self._check_sender(channel, encoding.kind_of(header))
                envelope, body = encoding.unpack(header, size, self._accepted, channel)
        except MessageRefused as refusal:
            self._refuse(channel, refusal)
            return DROPPED
        return Destination(body, lambda: self._take(channel, envelope))

    def _take(self, channel: Channel, envelope: Envelope) -> None:
        message = envelope.message
        try:
            with self._lock:
                self._check_sender(channel, type(message))
                if isinstance(message, Alive):
                    if bound := self._workers.get(message.rank):
                        bound.heard = time.monotonic()
                else:
                    self._waiting.append(envelope)
                    channel.waiting += 1
                    self._lock.notify()
        except MessageRefused as refusal:
            self._refuse(channel, refusal)

    def _check_sender(self, channel: Channel, kind: type) -> None:
        if channel.peer.rank < 0 and kind not in FROM_UNBOUND:
            raise MessageRefused("unknown worker")
        if channel.waiting >= MAX_WAITING:
            raise MessageRefused("too many")

    def _refuse(self, channel: Channel, refusal: MessageRefused) -> None:
        self.refused[refusal.reason] += 1
        if refusal.reason == "unknown worker":
            self.reply(channel, Refusal(_UNKNOWN))

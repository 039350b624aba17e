"""A server's end of the wire: one ROUTER socket that only the run's workers get through to."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil
from types import TracebackType
from typing import Any, NamedTuple, Self

import zmq

from paceline.runtimes.live.addresses import bind
from paceline.runtimes.live.served import memory, wire
from paceline.runtimes.live.served.authenticator import HANDSHAKE, CurveAuthenticator
from paceline.runtimes.live.served.control import Beat, Died, Hello, Refusal
from paceline.runtimes.live.served.keys import Secret, server_keys, worker_keys
from paceline.runtimes.live.served.memory import Mapped
from paceline.runtimes.live.served.shape import Shape
from paceline.runtimes.live.served.tuning import AT_SERVER, tune
from paceline.runtimes.live.served.wire import Expected, Refused
from paceline.strategies.messages import Model

WAITING = 8
"""Messages of one worker that may wait; a worker that keeps to its program has one or two."""
LIMIT = 2**28
"""Bytes of a collective's tensor."""
_AT_ONCE = 256
"""Messages that are read in one go: a flood must not keep the server from its work."""
_UNKNOWN = "this server does not know the worker, or has given it up after a long silence"


class Parcel(NamedTuple):
    """A message that has come."""

    identity: bytes
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

    identity: bytes
    heard: float = field(default_factory=time.monotonic)
    memory: Mapped | None = None


class ServerSocket:
    """Receives from all workers and sends to each, without ever waiting for one.

    Whatever does not fit is dropped, counted in ``refused`` and survived. A connection that is not bound to a worker
    may say Hello, Beat and Died only.
    """

    def __init__(
        self, secret: Secret, host: str, shape: Shape, rank: int, servers: int, limit: int = LIMIT
    ) -> None:
        """Listen at a free port of ``host``, an address of this one; ``shape`` is of the part that is kept."""
        self._shape, self._rank, self._servers = shape, rank, servers
        self._expected = Expected.at_server(shape, limit)
        self._callers: dict[int, _Caller] = {}
        self._workers: dict[bytes, int] = {}
        self._waiting: deque[tuple[bytes, wire.Letter]] = deque()
        self._of: Counter[bytes] = Counter()
        self._refused: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        tune(self._socket, WAITING, AT_SERVER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = server_keys(secret).secret
        self._socket.router_mandatory = True
        self._socket.handshake_ivl = HANDSHAKE
        self._authenticator = CurveAuthenticator(self._context, self._socket, worker_keys(secret).public)
        self._authenticator.guard(bind(self._socket, host, 0))

    @property
    def endpoint(self) -> str:
        """Where workers connect to."""
        return bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    @property
    def refused(self) -> Counter[str]:
        """Why something was refused, to how often."""
        return self._refused + self._authenticator.refused

    def receive(self, timeout: float) -> Parcel | None:
        """The next message, or None if there is none within so many seconds."""
        end = time.monotonic() + timeout
        self._drain()
        while not self._waiting:
            left = end - time.monotonic()
            if left <= 0 or not self._socket.poll(ceil(left * 1000)):
                return None
            self._drain()
        depth = len(self._waiting)
        identity, (flags, message) = self._waiting.popleft()
        self._of[identity] -= 1
        if not self._of[identity]:
            del self._of[identity]
        return Parcel(identity, self._workers.get(identity, -1), flags, message, depth)

    def bind(self, identity: bytes, worker: int) -> None:
        """From now on this connection is that worker's, and no other is."""
        self.forget(worker)
        self._callers[worker] = _Caller(identity)
        self._workers[identity] = worker

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
        return self._hand_over(
            caller.identity, wire.pack(message, flags, shared.deposit if shared else wire.nowhere)
        )

    def reply(self, identity: bytes, message: Any, flags: int = 0) -> bool:
        """Send to a connection that need not be bound."""
        return self._hand_over(identity, wire.pack(message, flags))

    def heard(self, worker: int) -> float:
        """When a worker last said anything, a beat included, by the monotonic clock; KeyError if it is not bound."""
        self._drain()
        return self._callers[worker].heard

    def forget(self, worker: int) -> None:
        """The worker is gone: drop what it has said, and its memory."""
        caller = self._callers.pop(worker, None)
        if caller is None:
            return
        del self._workers[caller.identity]
        self._waiting = deque(entry for entry in self._waiting if entry[0] != caller.identity)
        self._of.pop(caller.identity, None)

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has gone out or so many seconds are over."""
        if not self._socket.closed:
            self._socket.disable_monitor()  # before its reader goes: events that nobody takes would block ZeroMQ
            self._authenticator.close()
            self._socket.close(linger=round(linger * 1000))
            self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hand_over(self, identity: bytes, frames: list[wire.Frame]) -> bool:
        try:
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK, copy=True)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def _drain(self) -> None:
        """Read what has come, so that it is known how much is waiting."""
        for _ in range(_AT_ONCE):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._take(identity.bytes, [frame.buffer for frame in frames])
            except Refused as refusal:
                self._refused[refusal.reason] += 1

    def _take(self, identity: bytes, frames: list[wire.Frame]) -> None:
        worker = self._workers.get(identity)
        caller = None if worker is None else self._callers[worker]
        if caller is None and frames and wire.kind_of(frames[0]) not in (Hello, Beat, Died):
            self.reply(identity, Refusal(_UNKNOWN))
            raise Refused("unknown worker")
        if self._of[identity] >= WAITING:
            raise Refused("too many")
        letter = wire.unpack(frames, self._expected, caller.memory if caller else None)
        if isinstance(letter.message, Beat):
            caller = self._callers.get(letter.message.rank)
        else:
            self._waiting.append((identity, letter))
            self._of[identity] += 1
        if caller is not None:
            caller.heard = time.monotonic()

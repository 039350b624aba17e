"""The run's store: keys and values in memory, served over ZeroMQ to whoever has the run's secret."""

import threading
import time
from collections import Counter
from typing import NamedTuple

import zmq

from paceline.runtimes.live.addresses import bind
from paceline.runtimes.live.secret import Secret, member_keys, store_keys
from paceline.runtimes.live.served.authenticator import HANDSHAKE, CurveAuthenticator
from paceline.runtimes.live.store_requests import (
    FRAMES,
    LONGEST_VALUE,
    MOST_BYTES,
    MOST_KEYS,
    NUMBER,
    Op,
    Refused,
    Request,
    Status,
    number_in,
    pack_answer,
    unpack_request,
)

_GLANCE = 100
"""Milliseconds between looks at whether the store is to close."""
_BACKLOG = 1024
_OUTSIDE = ("stranger", "wrong key")
Answer = tuple[Status, list[bytes]]


class Table:
    """Keys and values with limits, and torch's meaning of each operation; knows nothing of connections."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0

    def has(self, keys: tuple[bytes, ...]) -> bool:
        """Whether all keys are set."""
        return all(key in self._values for key in keys)

    def answer(self, request: Request) -> Answer:
        """Carry a request out; Refused where it would exceed a limit."""
        match request.op:
            case Op.SET:
                self._set(request.keys[0], request.values[0])
                return Status.DONE, []
            case Op.ADD:
                return Status.DONE, [self._add(request.keys[0], NUMBER.unpack(request.values[0])[0])]
            case Op.COMPARE_SET:
                return Status.DONE, [self._compare_set(request.keys[0], *request.values)]
            case Op.DELETE:
                return Status.DONE if self._delete(request.keys[0]) else Status.MISSING, []
            case Op.COUNT:
                return Status.DONE, [NUMBER.pack(len(self._values))]
        if not self.has(request.keys):
            return Status.MISSING, []
        return Status.DONE, [self._values[key] for key in request.keys] if request.op is Op.READ else []

    def _set(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        grown = len(value) + len(key) if before is None else len(value) - len(before)
        if self._bytes + grown > MOST_BYTES or (before is None and len(self._values) >= MOST_KEYS):
            raise Refused("the store is full")
        self._values[key] = value
        self._bytes += grown

    def _add(self, key: bytes, amount: int) -> bytes:
        value = b"%d" % (number_in(self._values.get(key, b"0")) + amount)
        self._set(key, value)
        return value

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        now = self._values.get(key)
        if now is None and expected:
            return expected
        if now is None or now == expected:
            self._set(key, desired)
            return desired
        return now

    def _delete(self, key: bytes) -> bool:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= len(key) + len(value)
        return value is not None


class _Waiting(NamedTuple):
    request: Request
    until: float


class StoreServer:
    """A thread that answers one ROUTER socket; connections must prove with CURVE that they have the secret.

    ``refused`` counts connections that could not, and requests of members that do not fit; neither has any effect.
    """

    def __init__(self, secret: Secret, address: str, port: int) -> None:
        """Listen on this host's own ``address`` only; port 0 takes a free one; UsageError if it is taken."""
        self._table = Table()
        self._waiting: dict[bytes, _Waiting] = {}
        self._refused: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.maxmsgsize = LONGEST_VALUE
        self._socket.handshake_ivl = HANDSHAKE
        self._socket.backlog = _BACKLOG
        self._socket.rcvtimeo = _GLANCE
        self._socket.curve_server = True
        self._socket.curve_secretkey = store_keys(secret).secret
        self._authenticator = CurveAuthenticator(self._context, self._socket, member_keys(secret).public)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="paceline-store", daemon=True)
        try:
            self.port = bind(self._socket, address, port)
        except BaseException:
            self._end()
            raise
        self._authenticator.guard(self.port)
        self._thread.start()

    @property
    def refused(self) -> Counter[str]:
        """Why something was refused, to how often."""
        return self._refused + self._authenticator.refused

    def refusals(self) -> str | None:
        """What was refused, as a line for the user; None where nothing was."""
        refused = self.refused
        outside = sum(refused[reason] for reason in _OUTSIDE)
        inside = refused.total() - outside
        parts = [f"{outside:,} connections without the run's secret"] if outside else []
        parts += [f"{inside:,} malformed requests"] if inside else []
        return f"refused: {', '.join(parts)}" if parts else None

    def close(self) -> None:
        """End the thread and close the port; members notice at once."""
        if not self._context.closed:
            self._closing.set()
            self._thread.join()
            self._end()

    def _end(self) -> None:
        self._socket.disable_monitor()  # before its reader goes: events that nobody takes would block ZeroMQ
        self._authenticator.close()
        self._socket.close(linger=100)
        self._context.term()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                identity, *frames = self._socket.recv_multipart()
            except zmq.Again:
                self._forget_late()
                continue
            self._take(identity, frames)

    def _take(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            if len(frames) > FRAMES:
                raise Refused("malformed request")
            request = unpack_request(frames)
        except Refused as refusal:
            self._refused[str(refusal)] += 1
            return
        try:
            answer = self._table.answer(request)
        except Refused as refusal:
            self._refused[str(refusal)] += 1
            answer = (Status.REFUSED, [str(refusal).encode()])
        # A connection asks one question at a time: the one before has been given up.
        self._waiting.pop(identity, None)
        if answer[0] is Status.MISSING and request.seconds > 0:
            self._waiting[identity] = _Waiting(request, time.monotonic() + request.seconds)
            return
        self._send(identity, request, answer)
        if request.values and answer[0] is Status.DONE:
            self._wake(request.keys[0])

    def _wake(self, key: bytes) -> None:
        """Answer those who waited for a key that has been set."""
        for identity, (request, until) in list(self._waiting.items()):
            if key in request.keys and self._table.has(request.keys):
                del self._waiting[identity]
                if time.monotonic() < until:
                    self._send(identity, request, self._table.answer(request))

    def _forget_late(self) -> None:
        now = time.monotonic()
        self._waiting = {who: waiting for who, waiting in self._waiting.items() if waiting.until > now}

    def _send(self, identity: bytes, request: Request, answer: Answer) -> None:
        try:
            self._socket.send_multipart([identity, *pack_answer(request.number, *answer)], zmq.NOBLOCK)
        except zmq.Again:
            self._refused["a member that does not read"] += 1

"""The run's store: keys and values in memory, kept for whoever has the run's secret.

Requests and answers are small typed messages with limits, never a pickle.
"""

import threading
import time
from collections import Counter
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import msgspec

from paceline.runtimes.live.addresses import cannot_listen, resolve
from paceline.runtimes.live.secret import Secret, store_key
from paceline.runtimes.live.timeouts import STORE_CUT
from paceline.runtimes.live.wire.channel import Channel, Destination, MessageLimits, Packet
from paceline.runtimes.live.wire.listener import Listener

LONGEST_KEY = 512
LONGEST_VALUE = 2**20
MOST_KEYS = 100_000
MOST_BYTES = 64 * 2**20
"""Bytes of all keys and values together."""
KEYS_AT_ONCE = 4096
"""Keys that one request may name."""
LONGEST_WAIT = 7 * 24 * 3600.0
"""Seconds that a request may wait at the store."""
_LONGEST_REQUEST = KEYS_AT_ONCE * (LONGEST_KEY + 8) + 2 * LONGEST_VALUE + 1024
_MOST_ANSWERS = 4
"""That may wait for one member; a member asks one question at a time."""
_OUTSIDE = ("stranger", "wrong key")


class Op(IntEnum):
    SET = 1
    ADD = 2
    COMPARE_SET = 3
    DELETE = 4
    COUNT = 5
    CHECK = 6
    """Whether all keys are set; waits for them if asked to."""
    READ = 7
    """The values of all keys; waits for them if asked to."""


class Status(IntEnum):
    DONE = 1
    MISSING = 2
    REFUSED = 3


_KEYS_AND_VALUES: dict[Op, tuple[int | None, int]] = {
    Op.SET: (1, 1),
    Op.ADD: (1, 1),
    Op.COMPARE_SET: (1, 2),
    Op.DELETE: (1, 0),
    Op.COUNT: (0, 0),
    Op.CHECK: (None, 0),
    Op.READ: (None, 0),
}
"""How many of both an operation takes; None is one or more."""


class Refused(ValueError):
    """A request that does not fit."""


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Comes back with the answer."""
    op: Op
    keys: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()
    seconds: float = 0.0
    """How long to wait for keys that are not set."""

    def pack(self) -> bytes:
        """As bytes; Refused where a limit is exceeded, so that the caller learns it before the store does."""
        self.check()
        return msgspec.msgpack.encode(self)

    def check(self) -> None:
        wanted, needed = _KEYS_AND_VALUES[self.op]
        if len(self.values) != needed or (len(self.keys) != wanted if wanted is not None else not self.keys):
            raise Refused("malformed request")
        if not 0.0 <= self.seconds <= LONGEST_WAIT:  # also False for NaN
            raise Refused("malformed request")
        if len(self.keys) > KEYS_AT_ONCE:
            raise Refused(f"more than {KEYS_AT_ONCE} keys at once")
        if any(not 0 < len(key) <= LONGEST_KEY for key in self.keys):
            raise Refused(f"a key of none or of more than {LONGEST_KEY} bytes")
        if any(len(value) > LONGEST_VALUE for value in self.values):
            raise Refused(f"a value of more than {LONGEST_VALUE} bytes")


class StoreAnswer(msgspec.Struct, frozen=True, array_like=True):
    status: Status
    values: tuple[bytes, ...] = ()
    number: int = 0
    """Of the request."""


def unpack_request(message: memoryview | bytes) -> StoreRequest:
    """Read what ``StoreRequest.pack`` wrote; Refused whatever else it is."""
    try:
        request = msgspec.msgpack.decode(message, type=StoreRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refused("malformed request") from None
    request.check()
    return request


def _whole_number(value: bytes) -> int:
    """The integer that a value holds as decimal text."""
    if not value.removeprefix(b"-").isdigit() or len(value) > 20:
        raise Refused("not a number")
    return int(value)


class KeyValues:
    """Keys and values with limits, and torch's meaning of each operation; knows nothing of connections."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0

    def has(self, keys: tuple[bytes, ...]) -> bool:
        return all(key in self._values for key in keys)

    def answer(self, request: StoreRequest) -> StoreAnswer:
        """Carry a request out; Refused where it would exceed a limit."""
        match request.op:
            case Op.SET:
                self._set(request.keys[0], request.values[0])
                return StoreAnswer(Status.DONE)
            case Op.ADD:
                return StoreAnswer(Status.DONE, (self._add(request.keys[0], request.values[0]),))
            case Op.COMPARE_SET:
                return StoreAnswer(Status.DONE, (self._compare_set(request.keys[0], *request.values),))
            case Op.DELETE:
                return StoreAnswer(Status.DONE if self._delete(request.keys[0]) else Status.MISSING)
            case Op.COUNT:
                return StoreAnswer(Status.DONE, (b"%d" % len(self._values),))
        if not self.has(request.keys):
            return StoreAnswer(Status.MISSING)
        read = request.op is Op.READ
        return StoreAnswer(Status.DONE, tuple(self._values[key] for key in request.keys) if read else ())

    def _set(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        grown = len(value) + len(key) if before is None else len(value) - len(before)
        if self._bytes + grown > MOST_BYTES or (before is None and len(self._values) >= MOST_KEYS):
            raise Refused("the store is full")
        self._values[key] = value
        self._bytes += grown

    def _add(self, key: bytes, amount: bytes) -> bytes:
        value = b"%d" % (_whole_number(self._values.get(key, b"0")) + _whole_number(amount))
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
    request: StoreRequest
    until: float


class StoreServer:
    """Answers connections that have proven to have the secret, in the listener's thread.

    ``refused`` counts connections that could not, and requests of members that do not fit; neither has any effect.
    """

    def __init__(self, secret: Secret, address: str, port: int) -> None:
        """Listen on this host's own ``address`` only; port 0 takes a free one; UsageError if it is taken."""
        self._table = KeyValues()
        self._waiting: dict[Channel, _Waiting] = {}
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        with self._lock:  # a member may be there before this constructor has ended
            try:
                self._listener = Listener(
                    store_key(secret),
                    resolve(address, port),
                    self._announce,
                    MessageLimits(_LONGEST_REQUEST, 0),
                    STORE_CUT,
                )
            except OSError as error:
                raise cannot_listen(error, address, port) from None
        self.port = int(self._listener.endpoint.rpartition(":")[2])

    @property
    def refused(self) -> Counter[str]:
        """How often something was refused, by reason."""
        with self._lock:
            return self._refused + self._listener.refused

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
        self._listener.close(linger=0.1)

    def _announce(self, channel: Channel, message: memoryview, _: int) -> Destination:
        return Destination(None, partial(self._take, channel, message))

    def _take(self, channel: Channel, message: memoryview) -> None:
        with self._lock:
            try:
                request = unpack_request(message)
            except Refused as refusal:
                self._refused[str(refusal)] += 1
                return
            try:
                answer = self._table.answer(request)
            except Refused as refusal:
                self._refused[str(refusal)] += 1
                answer = StoreAnswer(Status.REFUSED, (str(refusal).encode(),))
            # A connection asks one question at a time: the one before has been given up.
            self._waiting.pop(channel, None)
            if answer.status is Status.MISSING and request.seconds > 0:
                self._waiting[channel] = _Waiting(request, time.monotonic() + request.seconds)
                return
            self._send(channel, request, answer)
            if request.values and answer.status is Status.DONE:
                self._wake(request.keys[0])

    def _wake(self, key: bytes) -> None:
        """StoreAnswer the members that wait for a key that has been set; forget those whose time is over."""
        now = time.monotonic()
        for channel, (request, until) in list(self._waiting.items()):
            answered = key in request.keys and self._table.has(request.keys)
            if answered or until < now:
                del self._waiting[channel]
            if answered and until >= now:
                self._send(channel, request, self._table.answer(request))

    def _send(self, channel: Channel, request: StoreRequest, answer: StoreAnswer) -> None:
        numbered = msgspec.structs.replace(answer, number=request.number)
        self._listener.send(channel, Packet(msgspec.msgpack.encode(numbered), memoryview(b"")), _MOST_ANSWERS)

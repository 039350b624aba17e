"""The run's store: keys and values in memory, for processes that have its secret; typed messages, never a pickle."""

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated

import msgspec

from paceline.errors import say_on_stderr
from paceline.runtimes.live.addresses import cannot_listen
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import STORE_CUT
from paceline.runtimes.live.wire.channel import DROPPED, Channel, Destination, MessageLimits, Packet
from paceline.runtimes.live.wire.listener import Listener

LONGEST_KEY = 512
LONGEST_VALUE = 2**20
KEYS_AT_ONCE = 4096
MOST_KEYS = 100_000
MOST_BYTES = 64 * 2**20
_LONGEST_REQUEST = KEYS_AT_ONCE * (LONGEST_KEY + 8) + 2 * LONGEST_VALUE + 1024
_MOST_ANSWERS = 4
"""That may be queued for one member, which asks one question at a time."""

_Key = Annotated[bytes, msgspec.Meta(min_length=1, max_length=LONGEST_KEY)]
_Value = Annotated[bytes, msgspec.Meta(max_length=LONGEST_VALUE)]


class Op(IntEnum):
    SET = 1
    ADD = 2
    COMPARE_SET = 3
    DELETE = 4
    READ = 5


class Refused(ValueError):
    pass


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    op: Op
    keys: Annotated[tuple[_Key, ...], msgspec.Meta(max_length=KEYS_AT_ONCE)] = ()
    values: Annotated[tuple[_Value, ...], msgspec.Meta(max_length=2)] = ()
    waits: bool = False

    def pack(self) -> bytes:
        """Encode it; Refused where a limit is exceeded, so that the caller finds out before the store does."""
        message = msgspec.msgpack.encode(self)
        unpack_request(message)
        return message


class StoreAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    values: tuple[bytes, ...] | None = ()
    """None: a key is missing."""
    refusal: str = ""


def unpack_request(message: memoryview | bytes) -> StoreRequest:
    try:
        return msgspec.msgpack.decode(message, type=StoreRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refused("malformed request") from None


def _whole_number(value: bytes) -> int:
    if not value.removeprefix(b"-").isdigit() or len(value) > 20:
        raise Refused("not a number")
    return int(value)


class StoreServer(Listener):
    def __init__(
        self, secret: Secret, address: str, port: int, say: Callable[[str], None] = say_on_stderr
    ) -> None:
        """Listen on this host's own ``address`` only; port 0 takes a free one; UsageError if it is taken."""
        self._say = say
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._waiting: dict[Channel, StoreRequest] = {}
        limits = MessageLimits(_LONGEST_REQUEST, 0)
        try:
            super().__init__(secret.key("store"), address, port, limits, STORE_CUT, linger=0.1)
        except OSError as error:
            raise cannot_listen(error, address, port) from None
        self.port = int(self.endpoint.rpartition(":")[2])

    def refusals(self) -> str:
        outside = self.refused["stranger"] + self.refused["wrong key"]
        inside = self.refused.total() - outside
        parts = [f"{outside:,} connections without the run's secret"] if outside else []
        parts += [f"{inside:,} malformed requests"] if inside else []
        return f"refused: {', '.join(parts)}" if parts else ""

    def close(self) -> None:
        super().close()
        if refusals := self.refusals():
            self._say(refusals)

    def announce(self, channel: Channel, message: memoryview, _: int) -> Destination:
        # A connection asks one question at a time: the one before has been abandoned.
        self._waiting.pop(channel, None)
        try:
            request = unpack_request(message)
        except Refused as refusal:
            self.refused[str(refusal)] += 1
        else:
            self._answer(channel, request)
            if request.values:
                self._wake(request.keys)
        return DROPPED  # there is no body

    def _answer(self, channel: Channel, request: StoreRequest) -> None:
        try:
            answer = StoreAnswer(request.number, self._carry_out(request))
        except Refused as refusal:
            self.refused[str(refusal)] += 1
            answer = StoreAnswer(request.number, refusal=str(refusal))
        if answer.values is None and request.waits:
            self._waiting[channel] = request
            return
        self._waiting.pop(channel, None)
        self.deliver(channel, Packet(msgspec.msgpack.encode(answer), memoryview(b"")), _MOST_ANSWERS)

    def _wake(self, keys: tuple[bytes, ...]) -> None:
        for channel, request in list(self._waiting.items()):
            if channel.socket.fileno() < 0:
                del self._waiting[channel]
            elif not set(keys).isdisjoint(request.keys):
                self._answer(channel, request)

    def _carry_out(self, request: StoreRequest) -> tuple[bytes, ...] | None:
        """The values of the answer, by torch's meaning of each operation; None where a key is missing."""
        values = self._values
        match request.op, request.keys, request.values:
            case Op.SET, (key,), (value,):
                self._set(key, value)
            case Op.ADD, (key,), (amount,):
                self._set(key, b"%d" % (_whole_number(values.get(key, b"0")) + _whole_number(amount)))
                return (values[key],)
            case Op.COMPARE_SET, (key,), (expected, desired):
                if values.get(key, b"") == expected:
                    self._set(key, desired)
                return (values.get(key, expected),)
            case Op.DELETE, (key,), ():
                if key not in values:
                    return None
                self._bytes -= len(key) + len(values.pop(key))
            case Op.READ, (_, *_) as keys, ():
                return tuple(values[key] for key in keys) if values.keys() >= set(keys) else None
            case _:
                raise Refused("malformed request")
        return ()

    def _set(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        grown = len(value) + len(key) if before is None else len(value) - len(before)
        if self._bytes + grown > MOST_BYTES or (before is None and len(self._values) >= MOST_KEYS):
            raise Refused("the store is full")
        self._values[key] = value
        self._bytes += grown

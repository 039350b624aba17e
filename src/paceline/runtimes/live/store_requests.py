"""Requests to the run's store and its answers: small typed frames with limits, never a pickle."""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

LONGEST_KEY = 512
LONGEST_VALUE = 2**20
MOST_KEYS = 100_000
MOST_BYTES = 64 * 2**20
"""Bytes of all keys and values together."""
KEYS_AT_ONCE = 4096
"""Keys that one request may name."""
LONGEST_WAIT = 7 * 24 * 3600.0
"""Seconds that a request may wait at the store."""
FRAMES = KEYS_AT_ONCE + 3
NUMBER = struct.Struct("<q")
"""How an integer travels."""

_REQUEST = struct.Struct("<IBd")
_ANSWER = struct.Struct("<IB")


class Op(IntEnum):
    """What is asked for."""

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
    """How a request was answered."""

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


class Request(NamedTuple):
    """One question to the store."""

    number: int
    """Comes back with the answer."""
    op: Op
    seconds: float
    """How long to wait for keys that are not set."""
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]

    def pack(self) -> list[bytes]:
        """As frames; Refused where a limit is exceeded, so that the caller learns it before the store does."""
        _check(self.op, self.keys, self.values)
        return [_REQUEST.pack(self.number, self.op, self.seconds), *self.keys, *self.values]


def unpack_request(frames: Sequence[bytes]) -> Request:
    """Read what ``Request.pack`` wrote; Refused whatever else it is."""
    if not frames or len(frames[0]) != _REQUEST.size:
        raise Refused("malformed request")
    number, code, seconds = _REQUEST.unpack(frames[0])
    if code not in _CODES:
        raise Refused("malformed request")
    op = Op(code)
    if not 0.0 <= seconds <= LONGEST_WAIT:  # also False for NaN
        raise Refused("malformed request")
    split = len(frames) - _KEYS_AND_VALUES[op][1]
    keys, values = tuple(frames[1:split]), tuple(frames[max(split, 1) :])
    _check(op, keys, values)
    return Request(number, op, seconds, keys, values)


def pack_answer(number: int, status: Status, values: Sequence[bytes] = ()) -> list[bytes]:
    """As frames."""
    return [_ANSWER.pack(number, status), *values]


def unpack_answer(frames: Sequence[bytes]) -> tuple[int, Status, list[bytes]]:
    """Read what ``pack_answer`` wrote: the request's number, how it went, and what was asked for."""
    number, status = _ANSWER.unpack(frames[0])
    return number, Status(status), list(frames[1:])


def number_in(value: bytes) -> int:
    """The integer that a counter's value holds, as decimal text."""
    if not value.removeprefix(b"-").isdigit() or len(value) > 20:
        raise Refused("not a number")
    return int(value)


_CODES = frozenset(int(op) for op in Op)


def _check(op: Op, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    wanted, needed = _KEYS_AND_VALUES[op]
    if len(values) != needed or (len(keys) != wanted if wanted is not None else not keys):
        raise Refused("malformed request")
    if len(keys) > KEYS_AT_ONCE:
        raise Refused(f"more than {KEYS_AT_ONCE} keys at once")
    if any(not 0 < len(key) <= LONGEST_KEY for key in keys):
        raise Refused(f"a key of none or of more than {LONGEST_KEY} bytes")
    if any(len(value) > LONGEST_VALUE for value in values):
        raise Refused(f"a value of more than {LONGEST_VALUE} bytes")
    if op is Op.ADD and len(values[0]) != NUMBER.size:
        raise Refused("malformed request")

"""What ranks tell each other through the store, read as if anybody could have written it.

A store takes values from whoever reaches it. Each kind of value is read by a function that returns something of
known type and range, or raises ``ValueError``; no value is used before.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paceline.shm.segment import TOKEN, Handle

T = TypeVar("T")

LONGEST = 4096
"""Bytes of a value; what ranks tell takes a few hundred."""
_LAST_PROCESS, _LAST_DESCRIPTOR = 2**22, 2**30
"""The largest that Linux gives out."""
_LONGEST_TEXT = 1000


@dataclass(frozen=True)
class Fact(Generic[T]):
    """Something that a rank tells: the key, what it is in an error's words, and how a value of it is read."""

    key: str
    means: str
    read: Callable[[Any], T]

    def parse(self, value: bytes) -> T:
        """What the store holds, checked; raises ``ValueError`` for whatever no rank would have written."""
        if len(value) > LONGEST:
            raise ValueError("too long")
        try:
            return self.read(json.loads(value))
        except (TypeError, RecursionError) as error:
            raise ValueError("malformed") from error


def plain(text: str) -> str:
    """A text from outside as it may be shown: of bounded length, and without control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_TEXT])


def _whole(value: Any, last: int) -> int:
    if type(value) is not int or not 0 <= value <= last:
        raise ValueError("not a number in range")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return plain(value)


def _member(value: Any) -> tuple[int, str]:
    process, host = value
    return _process(process), _text(host)


def _process(value: Any) -> int:
    if (process := _whole(value, _LAST_PROCESS)) == 0:
        raise ValueError("not a process")
    return process


def _offer(value: Any) -> Handle | str:
    if type(value) is str:
        return _text(value)
    process, descriptor, token = value
    read = bytes.fromhex(token)
    if len(read) != TOKEN:
        raise ValueError("not a token")
    return Handle(_process(process), _whole(descriptor, _LAST_DESCRIPTOR), read)


def _leader(value: Any) -> int:
    return _whole(value, 2**31)


MEMBER: Fact[tuple[int, str]] = Fact("member", "a process and its host", _member)
OFFER: Fact[Handle | str] = Fact("table", "a handle of shared memory", _offer)
"""A handle, or a sentence."""
MAPPED: Fact[str] = Fact("mapped", "whether the memory is mapped", _text)
"""Nothing, or a sentence that says why the memory cannot be mapped."""
TEAM: Fact[int] = Fact("team", "the first rank of its host", _leader)

"""Which messages may travel, which way, and what may be in them."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Self, get_type_hints

import torch

from paceline.runtimes.live.wire import control
from paceline.runtimes.live.wire.control import CONTROL_MESSAGES
from paceline.runtimes.live.wire.shape import Shape
from paceline.strategies.messages import MESSAGES, Join, Model, Pause, Pull, Push

KINDS: tuple[type, ...] = (*MESSAGES, *CONTROL_MESSAGES)
"""Every kind of message; its place here is its number on the wire."""
TO_SERVER: frozenset[type] = frozenset(
    {Join, Push, Pause, Pull, control.Hello, control.Beat, control.Goodbye}
    | {control.Contribution, control.Words, control.Keep, control.Ask, control.Died}
)
TO_WORKER: frozenset[type] = frozenset(
    {Model, control.Welcome, control.Refusal, control.Result, control.AllWords, control.Kept, control.Told}
)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
"""What tensors may be made of; the place here is the number on the wire."""

LONGEST_QUESTION, LONGEST_ANSWER = 2**18, 2**25
"""Bytes of a header with its texts: one worker's, and a server's, which may hold the texts of all workers."""


class Refused(ValueError):
    """What came is no message that may come; ``reason`` is one of a few words, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused: {reason}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What may come at one end of a connection."""

    kinds: frozenset[type]
    length: int
    """Elements that the tensor of a Push or a Model must have."""
    dtype: torch.dtype
    """The type that it must be of."""
    limit: int
    """Bytes that any other tensor may have."""

    @classmethod
    def at_server(cls, shape: Shape, limit: int) -> Self:
        """What workers may tell the server that keeps this."""
        return cls(kinds=TO_SERVER, length=shape.length, dtype=shape.dtype, limit=limit)

    @classmethod
    def at_worker(cls, shape: Shape, limit: int) -> Self:
        """What the server that keeps this may tell a worker."""
        return cls(kinds=TO_WORKER, length=shape.length, dtype=shape.dtype, limit=limit)

    def check(self, kind: type, length: int, dtype: torch.dtype) -> None:
        """Refuse a tensor that may not come; asked before any memory is taken for it."""
        if kind not in (Push, Model):
            if length * dtype.itemsize > self.limit:
                raise Refused("too large")
        elif dtype is not self.dtype:
            raise Refused("wrong type")
        elif length != self.length:
            raise Refused("wrong length")


def longest_header(kind: type) -> int:
    """Bytes that the header of such a message may have."""
    return LONGEST_QUESTION if kind in TO_SERVER else LONGEST_ANSWER


def lowest(kind: type, name: str) -> int:
    """The smallest number in a field: clocks, ranks and seconds start at 0; a Hello may ask for a rank with -1."""
    return -1 if kind is control.Hello and name == "rank" else 0


@cache
def typed_fields(kind: type) -> tuple[tuple[str, type], ...]:
    """The fields of a message and their types, in order."""
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))

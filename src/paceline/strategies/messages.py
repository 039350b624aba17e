"""What workers and servers tell each other; these and no others may travel between processes."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from torch import Tensor

HEADER = 64
"""Bytes that every message takes besides its tensors: its kind, its numbers and what the transport adds."""


def message_bytes(message: Any) -> int:
    """What a message weighs."""
    size = HEADER
    for name in _names(message.__class__):
        value = getattr(message, name)
        if isinstance(value, Tensor):
            size += value.nbytes
    return size


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True)
class Join:
    """A worker's first word; answered with Model, after a meeting where one is under way."""


@dataclass(frozen=True, slots=True)
class Push:
    """A gradient for the part that a server keeps; answered with Model when the worker may go on."""

    grad: Tensor
    clock: int
    """Steps that the worker had finished before it computed this gradient."""
    version: int
    """The version of the server's part that it was computed on."""
    samples: int


@dataclass(frozen=True, slots=True)
class Rest:
    """A worker goes to a meeting: until it pulls, nobody need wait for it. No answer."""


@dataclass(frozen=True, slots=True)
class Pull:
    """All workers have come to a meeting, and this one counts again; answered at once with Model."""


@dataclass(frozen=True, slots=True)
class Model:
    """The part of the parameters that a server keeps, and how far training has come."""

    params: Tensor
    version: int
    seen: int
    met: int
    held: float
    """Seconds for which the server could not answer because others were behind."""


@dataclass(frozen=True, slots=True)
class Left:
    """What every server receives when a worker has finished, gone or died."""

    clock: int


MESSAGES = (Join, Push, Rest, Pull, Model, Left)
"""Every kind of message, in the order of their numbers on the wire."""

"""The messages between workers and servers; no other kind may travel between processes."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from torch import Tensor

HEADER = 64
"""Bytes that every message takes besides its tensors: its kind, its numbers and what the transport adds."""


def message_bytes(message: Any) -> int:
    values = (getattr(message, name) for name in _names(message.__class__))
    return HEADER + sum(value.nbytes for value in values if isinstance(value, Tensor))


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True)
class Join:
    """A worker's first message; answered with Model, after a synchronization where one is under way."""


@dataclass(frozen=True, slots=True)
class Push:
    """A gradient for the slice that a server keeps; answered with Model when the worker may proceed."""

    grad: Tensor
    clock: int
    """Steps that the worker had finished before it computed this gradient."""
    version: int
    samples: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A worker synchronizes with the others: until it pulls, no worker waits for it. No answer."""


@dataclass(frozen=True, slots=True)
class Pull:
    """All workers have synchronized, and this one is active again; answered at once with Model."""


@dataclass(frozen=True, slots=True)
class Model:
    """The slice of the parameters that a server keeps, and the training's progress."""

    params: Tensor
    version: int
    seen: int
    seen_at_sync: int
    held: float
    """Seconds for which the server could not answer because other workers were behind."""


@dataclass(frozen=True, slots=True)
class Leave:
    """What every server receives when a worker has finished, left or died."""

    clock: int


MESSAGES = (Join, Push, Pause, Pull, Model, Leave)
"""Every kind of message, in the order of their numbers on the wire."""

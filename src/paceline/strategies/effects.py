"""What a strategy may ask of a runtime: six effects, each a small value.

A strategy is a generator that yields effects and never does I/O, reads a clock or starts a thread. A runtime
carries each effect out, on real processes or in virtual time, brings ``me`` up to date and resumes the program.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Mean:
    """How gradients are averaged while backward goes on: in buckets, weighted by each worker's samples."""

    first_bucket: int = MIB
    """Bytes of the first bucket; smaller starts the traffic earlier in backward."""

    bucket: int = 25 * MIB
    """Bytes of each later bucket; larger means fewer messages and less overlap."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The next mini-batch: data, forward, backward, into ``me.grad``.

    With ``reduce``, ``me.grad`` is the mean over all workers when the program goes on.
    """

    reduce: Mean | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """The local optimizer's step: ``me.params`` moves along ``me.grad``; ``me.clock`` counts one more step."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Every worker's ``tensor`` becomes the same: the mean weighted by ``weight``, or the sum.

    The tensor is overwritten in place. All workers must ask for the same sizes in the same order. The sum of the
    weights is left in ``me.total_weight``.
    """

    tensor: Tensor
    weight: float = 1.0
    op: Literal["mean", "sum"] = "mean"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every worker's ``tensor`` becomes that of worker ``root``, in place."""

    tensor: Tensor
    root: int = 0


class Peer(NamedTuple):
    """Somebody to send to: ``Peer("server", 0)``."""

    role: Literal["worker", "server"]
    rank: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message over for delivery and go on; its tensors are copied, so the sender may change its own.

    A message is a frozen dataclass whose fields are tensors, numbers and strings.
    """

    to: Peer
    message: Any


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message; the program is resumed with ``(sender, message)``."""


@dataclass(frozen=True, slots=True)
class Left:
    """The message that every server receives when a worker has finished or died."""

    clock: int


Program = Generator[Any, Any, Any]
"""A generator of effects; what it returns is up to whoever runs it."""

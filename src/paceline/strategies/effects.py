"""What a strategy may ask of a runtime: nine effects, each a small value.

A strategy is a generator that yields effects and never does I/O, reads a clock or starts a thread. A runtime
carries each effect out, on real processes or in virtual time, brings ``me`` up to date and resumes the program.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from paceline.jobs.partition import ClientBatch
from paceline.records.servers import AppliedGradient

MIB = 2**20


@dataclass(frozen=True, slots=True)
class BucketedMean:
    """Average gradients while backward goes on: in buckets, weighted by each worker's samples."""

    first_bucket: int = MIB
    """Bytes of the first bucket; smaller starts the traffic earlier in backward."""
    bucket: int = 25 * MIB
    """Bytes of each later bucket; larger means fewer messages and less overlap."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The next mini-batch: data, forward, backward, into ``me.grad``.

    With ``reduce``, ``me.grad`` is the mean over all workers when the program goes on.
    """

    reduce: BucketedMean | None = None
    batch: ClientBatch | None = None
    """A mini-batch of a client, where the strategy divides the data; None is the worker's own next one."""

    def __post_init__(self) -> None:
        if self.reduce is not None and self.batch is not None:
            raise ValueError(
                "a client's gradient cannot be reduced: workers take different numbers of steps in a round"
            )


@dataclass(frozen=True, slots=True)
class Apply:
    """The optimizer's step: ``me.params`` moves along ``me.grad``.

    A worker's own step ends with it: ``me.clock`` counts one more. On a server it is one update, ``me.version``
    counts one more and ``me.seen`` the samples of the gradients in it.
    """

    gradients: tuple[AppliedGradient, ...] = ()
    """Whose gradients a server's update is made of; a worker's step has none."""
    rate: float = 1.0
    fresh: bool = False
    """Whether a worker's optimizer begins anew with this step: momentum and all else that it has gathered is gone."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A worker's step ends without an optimizer of its own: ``me.clock`` counts one more (SSP's ``clock()``)."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Every worker's ``tensor`` becomes the same: the mean weighted by ``weight``, or the sum.

    The tensor is overwritten in place. All workers must ask for the same sizes in the same order. The sum of the
    weights is left in ``me.total_weight``.
    """

    tensor: Tensor
    weight: float = 1.0
    op: Literal["mean", "sum"] = "mean"
    offset: int | None = None
    """Where the tensor lies in the flat vector, if it is a difference of parameters (an outer gradient), which the
    run's codec may encode; None: it is sent as it is."""


@dataclass(frozen=True, slots=True)
class StartAllReduce(AllReduce):
    """Begin an all-reduce and go on (MPI_Iallreduce); ``Wait`` brings its result.

    The tensor must not be touched before that. It lies in ``me.state``, so that a run may resume in between: what is
    under way at a sync point is waited for there. Reductions that were started follow each other, and any other
    collective waits for them first. Only for workers that take the same number of steps (``EVERY_STEP``).
    """


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for all that was started; where nothing was, go on (as MPI_Wait does on a null request)."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every worker's ``tensor`` becomes that of worker ``root``, in place."""

    tensor: Tensor
    root: int = 0


class Peer(NamedTuple):
    """A node to send to: ``Peer("server", 0)``."""

    role: Literal["worker", "server"]
    rank: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message over for delivery and go on; messages between two nodes arrive in order.

    A message is a frozen dataclass whose fields are tensors, numbers and booleans; ``strategies.messages`` lists
    those that may travel between processes. A server may change its tensors at once. A worker changes what it has
    sent only after an answer.
    """

    to: Peer
    message: Any


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message; the program is resumed with ``(sender, message)``.

    A server that keeps a message's tensors for longer than until it next sends to the sender must copy them: they
    may lie in the sender's own memory.
    """

    until: float | None = None
    """On a server: the time (``me.now``) at which to stop waiting; the program is then resumed with ``None``."""


Program = Generator[Any, Any, Any]

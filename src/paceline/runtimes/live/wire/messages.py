"""The messages of a run with servers: the strategies' own and the control messages, and which way each may go."""

from dataclasses import dataclass

from torch import Tensor

from paceline.strategies.messages import MESSAGES, Join, Model, Pause, Pull, Push

EXPELLED = "expelled: "
"""How the reason of a Refusal begins that expels a worker for its silence."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first message to a server; answered with Welcome or Refusal. It may be sent again."""

    rank: int
    """-1 asks for one."""
    process: int = 0
    """The worker's process on its host, which holds its shared memory open; 0 where it shares none."""
    descriptor: int = 0
    """Which of that process's descriptors the memory is."""
    size: int = 0
    """Bytes of each of the two flat tensors in it."""
    token: str = ""
    """What stands at the start of the memory, by which a server verifies that it maps the same."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The worker belongs to the run."""

    rank: int
    shares: bool
    """Whether the server maps the worker's memory: from now on tensors travel through it."""
    document: str
    """For a worker that joins: what is run, as JSON."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The worker does not belong to the run, or no longer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker's process is alive, whatever it is busy with."""

    rank: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A worker's last message."""

    clock: int
    how: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """A worker's tensor for a collective among the workers; answered with Result."""

    op: str
    root: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a collective."""

    members: str
    """The ranks that took part, "0,2,3"."""
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Document:
    """A worker's JSON document for an exchange among the workers; answered with AllDocuments."""

    document: str


@dataclass(frozen=True, slots=True)
class AllDocuments:
    """Every worker's document by rank, as one JSON document."""

    document: str


@dataclass(frozen=True, slots=True)
class SaveShard:
    """No worker sends gradients now: save the server's state; answered with ShardSaved."""

    step: int


@dataclass(frozen=True, slots=True)
class ShardSaved:
    """The server's state of that step is on disk."""

    step: int


@dataclass(frozen=True, slots=True)
class GetTotals:
    """Answered with Totals of what the server has done so far."""


@dataclass(frozen=True, slots=True)
class TotalsReply:
    """The server's totals, as JSON."""

    document: str


@dataclass(frozen=True, slots=True)
class Died:
    """A launcher has seen one of its workers die."""

    rank: int
    clock: int
    """Steps that it had finished."""


TO_WORKER = frozenset({Model, Welcome, Refusal, Result, AllDocuments, ShardSaved, TotalsReply})
TO_SERVER = frozenset(
    {Join, Push, Pause, Pull, Hello, Alive, Goodbye, Contribution, Document, SaveShard, GetTotals, Died}
)
FROM_UNBOUND = frozenset({Hello, Alive, Died})
"""What a connection that belongs to no worker may send."""

_CONTROL = (Hello, Welcome, Refusal, Alive, Goodbye, Contribution, Result, Document, AllDocuments)
KINDS: tuple[type, ...] = (*MESSAGES, *_CONTROL, SaveShard, ShardSaved, GetTotals, TotalsReply, Died)
"""Every kind of message; its index is its number on the wire."""

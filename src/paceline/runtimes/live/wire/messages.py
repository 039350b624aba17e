"""The messages of a run with servers: the strategies' own and the control messages, and which way each may go."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.shm.segment import Handle
from paceline.strategies.messages import MESSAGES, Join, Model, Pause, Pull, Push

EXPELLED = "expelled: "
"""How the reason of a Refusal begins that expels a worker for its silence."""
NO_TENSOR = torch.empty(0)
Collective = Literal["sum", "min", "broadcast", "gather"]


class MessageRefused(Exception):
    """``reason`` is one of a few, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RequestRank:
    """A worker's only message on its way to join a run; answered with Welcome or Refusal."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first message to a server; answered with Welcome or Refusal. It may be sent again."""

    rank: int
    memory: Handle | None = None
    """The worker's memory, for servers on the same host; None where it shares none."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    rank: int
    shares: bool = False
    """Whether the server maps the worker's memory: from now on tensors travel through it."""
    document: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


@dataclass(frozen=True, slots=True)
class Alive:
    """What a worker sends again and again, from a thread and over a connection of its own."""

    rank: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A worker's last message, or its launcher's for it, after ``clock`` steps."""

    rank: int
    clock: int
    how: Literal["finished", "left", "died"]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A worker's tensor, or its JSON document, for a collective among the workers; answered with Result."""

    op: Collective
    root: int = 0
    tensor: Tensor = NO_TENSOR
    document: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a collective: the ranks that took part, and a tensor or all their documents."""

    members: tuple[int, ...]
    tensor: Tensor = NO_TENSOR
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveShard:
    """No worker sends gradients now: save the server's state; answered with Reply once it is on the disk."""

    step: int


@dataclass(frozen=True, slots=True)
class GetTotals:
    pass


@dataclass(frozen=True, slots=True)
class Reply:
    document: str = ""


@dataclass(frozen=True, slots=True)
class InitialParams:
    """Of rank 0 of a script, whose model only workers have: the slice that a server begins with. No answer."""

    params: Tensor


@dataclass(frozen=True, slots=True)
class ParamGroups:
    """The settings of a script's optimizer, as JSON, with which this worker's next gradients are applied. No answer."""

    document: str


FROM_UNBOUND = frozenset({RequestRank, Hello, Alive, Goodbye})
"""What a connection that belongs to no worker may send."""
TO_SERVER = FROM_UNBOUND | {
    Join,
    Push,
    Pause,
    Pull,
    Contribution,
    SaveShard,
    GetTotals,
    InitialParams,
    ParamGroups,
}
TO_WORKER = frozenset({Model, Welcome, Refusal, Result, Reply})

KINDS: tuple[type, ...] = (
    *MESSAGES,
    *(RequestRank, Hello, Welcome, Refusal, Alive, Goodbye, Contribution, Result, SaveShard, GetTotals),
    *(Reply, InitialParams, ParamGroups),
)
"""Every kind of message; its index is its number on the wire."""

"""A worker or server in virtual time: its program, and where it stands."""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

from paceline.costs.base import Times
from paceline.records.servers import ServerTotals
from paceline.runtimes.session import Ending, Session
from paceline.runtimes.virtual.books import Books
from paceline.strategies.effects import BucketedMean, Peer, Program


@dataclass(frozen=True, slots=True)
class Letter:
    """A message on its way, or in an inbox."""

    sender: Peer
    message: Any
    size: int
    how: str = ""
    """Of a worker's last one: "finished", "left" or "died"."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A letter that has arrived."""

    letter: Letter
    begun: float
    """When its first byte left."""
    arrived: float


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One worker or server.

    ``me`` is what its program sees; its ``now`` is the node's own clock, which may be ahead of the timeline's as
    long as the node meets nobody.
    """

    peer: Peer
    host: int
    me: Any
    """Worker or Server."""
    program: Program
    session: Session | None = None
    """Where it is a worker."""
    books: Books = field(default_factory=Books)
    answer: Any = None
    """What its program is resumed with."""
    postponed: Any = None
    """An effect that is carried out first when it is resumed."""
    shared: bool = False
    """Whether it has taken over the buffers for the gradient that it has asked for."""
    inbox: deque[Delivery] = field(default_factory=deque)
    waits_for: Any = None
    """The effect that it waits in, or nothing."""
    gone: bool = False
    ending: Ending | None = None
    begun: float = 0.0
    """When the last backward began."""
    ended: float = 0.0
    """When the last backward ended."""
    mean: BucketedMean | None = None
    plan: Any = None
    """The buckets of ``mean``, looked up once."""
    prices: tuple[tuple[Times, int], ...] = ()
    """The gradient's times and samples in a full step and in an epoch's last, where steps cost the same."""
    apply_seconds: float = 0.0
    starts: float = 0.0
    """When it begins."""
    dies: float = inf
    """When it dies."""
    ends: float = inf
    """When it dies, or the run is over: a gradient that would take longer is not finished."""
    steps: float = inf
    """After how many steps it leaves."""
    totals: ServerTotals = field(default_factory=ServerTotals)
    """Where it is a server: what it did."""
    tick: float = -1.0
    """The last time at which it has asked to be woken."""

    def __str__(self) -> str:
        return f"{self.peer.role} {self.peer.rank}"

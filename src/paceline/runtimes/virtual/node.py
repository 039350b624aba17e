"""A worker or server in virtual time: its program, and what it waits for."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from paceline.costs.stated import GradientTimes
from paceline.records.servers import ServerTotals
from paceline.runtimes.session import Ending, Session
from paceline.runtimes.virtual.ledger import StepLedger
from paceline.strategies.effects import AllReduce, Broadcast, BucketedMean, Gradient, Peer, Program, Receive
from paceline.units import show_seconds

SHOWN = 8
"""Workers that are named before the rest are only counted."""


@dataclass(slots=True)
class SimulatedMessage:
    """A message with its sender and times."""

    sender: Peer
    message: Any
    size: int
    how: str = ""
    """Of a worker's last message: "finished", "left" or "died"."""
    begun: float = 0.0
    """When its first byte left."""
    arrived: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One worker or server.

    ``me`` is what its program sees; its ``now`` is the node's own clock, which may be ahead of the timeline's as
    long as the node does nothing that reaches others.
    """

    peer: Peer
    host: int
    me: Any
    """Worker or Server."""
    program: Program
    session: Session | None = None
    """None for a server."""
    ledger: StepLedger = field(default_factory=StepLedger)
    answer: Any = None
    """What its program is resumed with."""
    postponed: Any = None
    """An effect that is carried out first when the node is resumed."""
    shared: bool = False
    """Whether it has taken over rank 0's buffers for the gradient that it has asked for."""
    inbox: deque[SimulatedMessage] = field(default_factory=deque)
    waits_for: Any = None
    """The effect that it waits in, or None."""
    gone: bool = False
    ending: Ending | None = None
    begun: float = 0.0
    """When the last backward began."""
    ended: float = 0.0
    """When the last backward ended."""
    mean: BucketedMean | None = None
    plan: Any = None
    """The buckets of ``mean``, looked up once."""
    prices: tuple[tuple[GradientTimes, int], ...] = ()
    """The gradient's times and samples in a full step and in an epoch's last, where steps cost the same."""
    apply_seconds: float = 0.0
    starts: float = 0.0
    dies: float = inf
    ends: float = inf
    """When it dies, or the run is over: a gradient that would take longer is not finished."""
    steps: float = inf
    """After how many steps it leaves."""
    totals: ServerTotals = field(default_factory=ServerTotals)
    """What a server did."""
    tick: float = -1.0
    """The last time for which a server has scheduled a tick."""

    def __str__(self) -> str:
        return f"{self.peer.role} {self.peer.rank}"


def explain_deadlock(workers: Sequence[Node]) -> str:
    """One sentence about a run in which every node waits."""
    waiting = [worker for worker in workers if not worker.gone]
    parts = [
        f"{one} waits for {describe(one.waits_for)} since {show_seconds(one.me.now)}, at step {one.me.clock}"
        for one in waiting[:SHOWN]
    ]
    if len(waiting) > SHOWN:
        parts.append(f"and {len(waiting) - SHOWN} more wait")
    if gone := [str(worker) for worker in workers if worker.gone]:
        more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
        parts.append(f"{', '.join(gone[:SHOWN])}{more} left before")
    return f"the run cannot go on, every worker waits: {'; '.join(parts)}"


def describe(effect: Any) -> str:
    """What a node waits for, in a few words."""
    match effect:
        case AllReduce():
            return f"the others in an all-reduce of {effect.tensor.nbytes} bytes"
        case Broadcast():
            return f"the others in a broadcast of {effect.tensor.nbytes} bytes from worker {effect.root}"
        case Gradient():
            return "the others' gradients"
        case Receive():
            return "a message"
    return type(effect).__name__

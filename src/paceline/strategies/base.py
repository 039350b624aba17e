"""What a strategy is, and what it sees of the worker or server that it drives."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from torch import Tensor

from paceline.strategies.effects import Program


@dataclass(slots=True, eq=False)
class Worker:
    """One worker, as its program sees it. The runtime owns it and brings it up to date after every effect.

    A program may be dropped and started anew wherever it asks for its next gradient (that is how a run resumes from
    a checkpoint), so whatever must survive lives here and not in the program's variables.
    """

    rank: int
    workers: int
    params: Tensor
    """The flat parameters; a program may read and write them."""
    grad: Tensor
    """The flat gradient of the last mini-batch."""
    buffers: Tensor
    """The flat floating-point buffers, batch-norm statistics for one; empty where a model has none."""
    clock: int = 0
    """Steps finished."""
    now: float = 0.0
    """Seconds since the run began, as of the last effect."""
    samples: int = 0
    """Samples in the last mini-batch."""
    samples_apart: int = 0
    """Samples since ``params`` were last reduced."""
    total_weight: float = 0.0
    """The sum of the weights in the last reduction."""
    servers: int = 0
    """How many servers keep parts of the parameters."""
    seen: int = 0
    """Samples that all workers together have trained on, as far as the servers have told."""
    met: int = 0
    """The samples that had been seen when the workers last met, as far as the servers have told."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """The strategy's own state by name; saved in checkpoints."""


@dataclass(slots=True, eq=False)
class Server:
    """One server, as its program sees it: it keeps one part of the flat parameters.

    All of it is saved in checkpoints, when no worker waits for an answer; a program is then started anew.
    """

    rank: int
    servers: int
    params: Tensor
    """This server's part; the runtime's ``Apply`` changes it."""
    grad: Tensor
    """What the next ``Apply`` moves along; the program fills it."""
    version: int = 0
    """Updates so far."""
    seen: int = 0
    """Samples in the updates so far."""
    met: int = 0
    """The samples that had been seen when the workers last met."""
    now: float = 0.0
    """Seconds since the run began, as of the last effect."""
    awaited: tuple[int, ...] = ()
    """The workers with which the run begins or resumes: none of them goes on before all have come or left."""


def parts(vector: Tensor, servers: int) -> tuple[Tensor, ...]:
    """The part of a flat vector that each server keeps: all of almost the same length, in order."""
    return vector.tensor_split(servers)


def take_over(own: Tensor, received: Tensor) -> None:
    """Make ``own`` what was received, unless the runtime has written it there already."""
    if own.is_meta or own.data_ptr() != received.data_ptr():
        own.copy_(received)


class SyncPoint(Enum):
    """When all workers of a strategy stand at the same point, so that they can evaluate, save or stop together."""

    EVERY_STEP = "every step"
    """Whenever a worker asks for its next gradient: all workers take the same number of steps."""
    AFTER_ROUND = "after round"
    """Right after each AllReduce; between two of them some workers take more steps than others."""
    ON_REQUEST = "on request"
    """Nowhere by themselves: each comes when the servers have seen enough samples, and ``central`` waits for all."""


class Strategy(Protocol):
    """How workers agree. A frozen, keyword-only dataclass; its fields are its settings."""

    @property
    def sync_point(self) -> SyncPoint:
        """When the workers can act together."""

    def worker(self, me: Worker) -> Program:
        """Train without end; the runtime decides when to stop."""

    def central(self, me: Worker) -> Program:
        """Return the flat parameters that count: those that are evaluated, saved and exported.

        Run by every worker at a meeting. It must leave ``me.params`` as they are, except where workers meet
        ``APART``: there it waits for all of them and may bring this one up to date.
        """


def is_replicated(strategy: Strategy) -> bool:
    """Whether all workers hold the same parameters, to the last bit, whenever they ask for a gradient.

    A strategy says so with ``replicated = True``; its runs then compare, and fail where one worker has drifted.
    """
    return bool(getattr(strategy, "replicated", False))


@runtime_checkable
class Served(Protocol):
    """A strategy that keeps the parameters on servers."""

    def server(self, me: Server) -> Program:
        """Serve without end; every worker's last message is Left."""

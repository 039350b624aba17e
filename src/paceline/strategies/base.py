"""What a strategy is, and what it sees of the worker or server that it drives."""

from abc import abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import ClassVar, Literal, Protocol, Self

from torch import Tensor

from paceline.jobs.partition import NO_CLIENTS, UNDIVIDED, Clients, Partition
from paceline.specs.ranges import check_ranges
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    Clock,
    Gradient,
    Program,
    Receive,
    Send,
    StartAllReduce,
    Wait,
)

MOST_EFFECTS = 10_000
"""That a worker's program may ask for between two gradients."""
WORKER_EFFECTS = frozenset(
    {AllReduce, Apply, Broadcast, Clock, Gradient, Receive, Send, StartAllReduce, Wait}
)
ENDS = "ends; let it yield effects without end: the runtime decides when to stop"


@dataclass(frozen=True, kw_only=True)
class LearnerPlan:
    """How many models a worker trains, each on mini-batches of its own, and how their gradients are computed."""

    count: int | None = 1
    """None: as many as raise the throughput, found before the first step."""
    compute: Literal["auto", "together", "in-turn"] = "in-turn"
    """Auto: whichever is faster, found before the first step."""

    @property
    def is_open(self) -> bool:
        return self.count is None or self.compute == "auto"


ONE_LEARNER = LearnerPlan()


@dataclass(slots=True, eq=False)
class Worker:
    """One worker, as its program sees it. The runtime owns it and updates it after every effect.

    A program may be dropped and started anew wherever it asks for its next gradient (that is how a run resumes from
    a checkpoint), so whatever must survive lives here and not in the program's variables.
    """

    rank: int
    workers: int
    params: Tensor
    """The flat parameters; a program may read and write them. Of several learners, a matrix with a row for each."""
    grad: Tensor
    """As the parameters, and so are the buffers."""
    buffers: Tensor
    """The flat floating-point buffers, batch-norm statistics for one; empty where a model has none."""
    clock: int = 0
    now: float = 0.0
    """Seconds since the run began, as of the last effect."""
    samples: int = 0
    samples_since_sync: int = 0
    """Samples since ``params``, or a difference of them, were last given to a reduction."""
    total_weight: float = 0.0
    servers: int = 0
    seen: int = 0
    """Samples that all workers together have trained on, as of server 0's last answer."""
    seen_at_sync: int = 0
    """The same when the workers last synchronized."""
    rate_factor: float = 1.0
    """The schedule's factor on the learning rate in the last Apply."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """The strategy's own state by name; saved in checkpoints."""
    clients: Clients = NO_CLIENTS
    """The same on all workers; there are some where the strategy divides the data."""


@dataclass(slots=True, eq=False)
class Server:
    """One server, as its program sees it: it keeps one slice of the flat parameters.

    All of it is saved in checkpoints, when no worker waits for an answer; a program is then started anew.
    """

    rank: int
    servers: int
    params: Tensor
    """This server's slice; the runtime's ``Apply`` changes it."""
    grad: Tensor
    """What the next ``Apply`` moves along; the program fills it."""
    version: int = 0
    seen: int = 0
    seen_at_sync: int = 0
    now: float = 0.0
    initial_workers: tuple[int, ...] = ()
    """The workers with which the run begins or resumes: none proceeds before all of them have joined or left."""


def server_slices(vector: Tensor, servers: int) -> tuple[Tensor, ...]:
    return vector.tensor_split(servers)


def copy_unless_shared(own: Tensor, received: Tensor) -> None:
    """Make ``own`` what was received, unless the runtime has written it there already."""
    if own.is_meta or own.data_ptr() != received.data_ptr():
        own.copy_(received)


def wrong_effect(effect: object, since_gradient: int, workers: int) -> str:
    """What is wrong with the effect that a worker's program asks for; empty where nothing is."""
    if type(effect) not in WORKER_EFFECTS:
        return f"asks for {effect!r}, which is no effect; yield Gradient(), Apply() or another effect"
    if since_gradient > MOST_EFFECTS:
        return f"asks for {since_gradient:,} effects and for no gradient among them; yield Gradient() in each step"
    if isinstance(effect, Broadcast) and not 0 <= effect.root < workers:
        return f"asks for a Broadcast from rank {effect.root} of {workers} workers; choose a root below me.workers"
    return ""


class SyncPoint(Enum):
    """When all workers of a strategy are at the same point, so that they can evaluate, save or stop together."""

    EVERY_STEP = "every step"
    """Whenever a worker asks for its next gradient: all workers take the same number of steps."""
    AFTER_ROUND = "after round"
    """Right after each AllReduce; between two of them some workers take more steps than others."""
    ON_REQUEST = "on request"
    """When the servers have seen enough samples: ``central`` waits for all workers."""


class Strategy(Protocol):
    """How workers agree. A frozen, keyword-only dataclass that inherits from this; its fields are its settings."""

    replicated: ClassVar[bool] = False
    """Whether all workers hold equal parameters, to the last bit, whenever they ask for a gradient; it is checked."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    @abstractmethod
    def sync_point(self) -> SyncPoint: ...

    @property
    def least_workers(self) -> int:
        return 1

    @property
    def settled(self) -> int:
        """Steps after which a run goes on as it will for the rest: prediction is of the steps after these."""
        return 0

    @property
    def regular(self) -> bool:
        """Whether what is exchanged repeats after some steps, whatever these take; else prediction simulates longer."""
        return True

    @property
    def learner_plan(self) -> LearnerPlan:
        return ONE_LEARNER

    def with_learners(self, plan: LearnerPlan) -> Self:  # noqa: ARG002
        """The same strategy with what its plan leaves open decided; a plan that leaves nothing open needs none."""
        raise _undefined(f"{type(self).__name__} leaves its learners open; define with_learners")

    @property
    def staleness_bound(self) -> float | None:
        """With servers: steps by which a worker may be ahead of the slowest before it waits.

        0 is a whole round at every step, inf no bound; where it is None, prediction simulates every worker.
        """
        return None

    @property
    def most_workers(self) -> float:
        return inf

    def partition(self, workers: int) -> Partition:  # noqa: ARG002
        """How the training data is divided among clients, with so many workers; by default it is not."""
        return UNDIVIDED

    @property
    def served(self) -> bool:
        """Whether servers keep the parameters: where ``server`` is a program of its own."""
        return type(self).server is not Strategy.server

    @abstractmethod
    def worker(self, me: Worker) -> Program:
        """Train without end; the runtime decides when to stop."""

    @abstractmethod
    def central(self, me: Worker) -> Program:
        """Return the flat parameters that count: those that are evaluated, saved and exported.

        Run by every worker at a synchronization. It must leave ``me.params`` as they are, except where workers
        synchronize ``ON_REQUEST``: there it waits for all of them and may bring this one up to date.
        """

    def server(self, me: Server) -> Program:  # noqa: ARG002
        """Serve without end; every worker's last message is Leave. Without servers, leave it out."""
        raise _undefined(f"{type(self).__name__} has no servers; define server")


def _undefined(sentence: str) -> NotImplementedError:
    """Of a method that need not be defined: where a body only raises the error, type checkers take it for abstract."""
    return NotImplementedError(sentence)

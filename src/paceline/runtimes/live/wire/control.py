"""What the processes of a served run tell each other besides their strategy's messages."""

from dataclasses import dataclass

from torch import Tensor

GIVEN_UP = "given up: "
"""How the reason of a Refusal begins that expels a worker for its silence."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first word to a server; answered with Welcome or Refusal. It may be said again."""

    rank: int
    """-1 asks for one."""
    process: int = 0
    """The worker's process on its host, which holds its shared memory open; 0 where it shares none."""
    descriptor: int = 0
    """Which of that process's descriptors the memory is."""
    size: int = 0
    """Bytes of each of the two flat tensors in it."""
    token: str = ""
    """What stands at the start of the memory, by which a server knows that it maps the same."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The worker belongs to the run."""

    rank: int
    shares: bool
    """Whether the server maps the worker's memory: from now on tensors travel through it."""
    document: str
    """What the worker needs to know, as JSON."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The worker does not belong to the run, or no longer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive, whatever it is busy with."""

    rank: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A worker's last word."""

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
    """What has become of everybody's contributions."""

    members: str
    """The ranks of those who took part, "0,2,3"."""
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Words:
    """A worker's JSON document for an exchange among the workers; answered with AllWords."""

    document: str


@dataclass(frozen=True, slots=True)
class AllWords:
    """Everybody's documents, as one JSON document."""

    document: str


@dataclass(frozen=True, slots=True)
class Keep:
    """All workers are quiet: save the server's state; answered with Kept."""

    step: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The server's state of that step is safe."""

    step: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What has this server done so far? Answered with Told."""


@dataclass(frozen=True, slots=True)
class Told:
    """The server's totals, as JSON."""

    document: str


@dataclass(frozen=True, slots=True)
class Died:
    """A launcher has seen one of its workers die."""

    rank: int
    clock: int
    """Steps that it had finished."""


CONTROL_MESSAGES = (
    Hello,
    Welcome,
    Refusal,
    Beat,
    Goodbye,
    Contribution,
    Result,
    Words,
    AllWords,
    Keep,
    Kept,
    Ask,
    Told,
    Died,
)
"""In the order of their numbers on the wire, after the strategies' messages; new ones go to the end."""

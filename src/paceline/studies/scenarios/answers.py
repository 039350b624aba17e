"""What the questions of scenarios are answered with; ``asdict`` makes a document of each."""

from dataclasses import dataclass

from paceline.records.servers import Entry


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Updates of a server, one after the other, that are alike."""

    count: int
    workers: int
    """How many took part in each."""
    seconds: float
    """Of one of them, on average: since the update before, or since the beginning."""


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    """A run in virtual time."""

    strategy: str
    workers: tuple[str, ...]
    """The name of every worker's host, by rank."""
    seconds: float
    """Until the last update, where there are servers; else until the last worker has ended."""
    batches: int
    """Mini-batches that went into the model."""
    local_batches: int
    """Mini-batches of a worker between two exchanges, where a round is more than one."""
    compute: float
    """Seconds that a worker computes between two exchanges; the slowest one's."""
    communicate: float | None
    """Seconds of a worker over the whole run, on average; None where there are servers, and rounds tell it."""
    wait: float | None
    horizon: float | None
    updates: int
    rounds: tuple[Rounds, ...]
    """In order; empty where there are no servers, and where they are too many that differ."""
    unfinished: tuple[str, ...]
    """Workers that came and handed nothing in."""
    entries: tuple[Entry, ...]
    """The server's log, where the run is short enough to be told update by update."""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """A round with so many workers."""

    workers: int
    compute: float
    rest: float
    """All of the round that is no computation: messages, aggregation, updates, waiting."""


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """From how many workers the rest of a round takes longer than computing."""

    workers: int | None
    """None where it never does, up to the most that were tried."""
    most: int
    tried: tuple[Balance, ...]
    """By workers."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """One model on a device that is always at its peak."""

    model: str
    operations: float
    """An image."""
    seconds: float
    """An image."""
    rate: float
    """Images a second."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What a device could do at best."""

    device: str
    flops: float
    models: tuple[Throughput, ...]


@dataclass(frozen=True, kw_only=True)
class LeastTraffic:
    """The lower bound of an all-reduce, and the use that a measured time makes of it."""

    items: int
    item_size: int
    processes: int
    bound: int
    """Bytes that some process must send."""
    seconds: float | None = None
    use: float | None = None
    """Bytes a second: the bound over the time."""
    link: float | None = None
    """Bytes a second that the link could carry."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One measured epoch, and what it is made of."""

    workers: int
    batch: int
    """Of a worker."""
    seconds: float
    steps: int
    speed_up: float
    """Over one worker with the same batch."""
    compute: float
    """One worker's epoch over the workers."""
    communicate: float
    """The rest; negative where many are more than so many times as fast."""
    use: float | None
    """Bytes a second of the least that an all-reduce must move; None for one worker, or where nothing is left."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A table of measured epochs as a scaling study prints it."""

    model: str
    parameters: int
    samples: int
    points: tuple[ScalingPoint, ...]

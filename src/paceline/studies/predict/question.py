"""What the study is asked, checked before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError
from paceline.jobs.sharding import Shards
from paceline.studies.predict.model import Case, CostModel, Quality

Scaling = Literal["weak", "strong"]
"""Weak: every worker keeps its batch. Strong: the batch of all workers together stays, each has its part."""

MOST_WORKERS = 1_000_000
MOST_COUNTS = 64
MOST_BATCH = 10_000_000

_DIGITS = 12
"""Of a count; more are out of range whatever they are."""

USUAL_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Money:
    """What is paid, and for how long a training."""

    worker_hour: float = 0.0
    """Price of a worker for an hour; 0 where nobody says."""
    host_hour: float = 0.0
    """Price of a whole host for an hour, instead."""
    samples: int | None = None
    """Samples of an epoch."""
    epochs: int | None = None
    """Passes over them, where the whole training is asked for."""

    def __post_init__(self) -> None:
        for option, price in (("--price", self.worker_hour), ("--host-price", self.host_hour)):
            if not 0 <= price < float("inf"):
                raise UsageError(
                    f"{option} {price:g} cannot be: give a price an hour of 0 or more, such as 3.06"
                )
        if self.worker_hour and self.host_hour:
            raise UsageError(
                "--price is for each worker and --host-price for each host: leave one of them out"
            )
        for option, count in (("--samples", self.samples), ("--epochs", self.epochs)):
            if count is not None and count < 1:
                raise UsageError(f"{option} {count} is too small: it must be at least 1")

    @property
    def stated(self) -> bool:
        """Whether there is a price."""
        return self.worker_hour > 0 or self.host_hour > 0

    def room(self, batch: int) -> int:
        """How many workers of such a batch there is data for."""
        return MOST_WORKERS if self.samples is None else max(1, self.samples // batch)

    def shards(self, case: Case) -> Shards:
        """The data cut into the batches of a case; a UsageError where one is larger than the data."""
        assert self.samples is not None, "nobody said how many samples there are"
        whole = case.total == case.batch * case.workers
        sizes = (case.batch,) * case.workers if whole else (case.total,)
        return Shards(samples=self.samples, batch_sizes=sizes, seed=0)

    def steps(self, case: Case) -> int | None:
        """Steps of the whole training, where it is known how long that is: an epoch has whole ones."""
        if self.samples is None or self.epochs is None:
            return None
        return self.epochs * self.shards(case).steps_per_epoch

    def hourly(self, workers: int, hosts: int) -> float:
        """What so many workers on so many hosts cost an hour; a host that is partly used is paid whole."""
        return workers * self.worker_hour + hosts * self.host_hour


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which ways, how many workers, what batch; the model knows the rest."""

    name: str
    """What is trained."""
    model: CostModel
    workers: tuple[int, ...] = USUAL_WORKERS
    batch: int = 32
    """Samples a worker and step, or of all workers together in strong scaling."""
    accumulate: int = 1
    """Mini-batches that these are; --batch-size counts the samples of one."""
    scaling: Scaling = "weak"
    strategies: tuple[str, ...] = ("all-reduce",)
    servers: int = 1
    jitter: float = 0.0
    money: Money = Money()
    remedies: tuple["Remedy", ...] = ()
    """Changes that somebody could make; those that help are found by predicting them."""
    roomier: tuple["Remedy", ...] = ()
    """Changes that take less memory or bring more, smallest first; a smaller batch is always one."""
    gathers: "Gathers | None" = None
    """Where the codec's messages do not add up on the way."""
    network: Quality = Quality()
    """Another network between hosts than the model's."""

    def __post_init__(self) -> None:
        check_counts(self.workers)
        check_batch(self.batch, self.workers, self.scaling)
        if not 0 <= self.jitter <= 2:
            raise UsageError(
                f"--jitter {self.jitter:g} is out of range: it must be 0 (none) to 2, for example 0.05"
            )
        if not self.strategies or len(set(self.strategies)) < len(self.strategies):
            raise UsageError(f"--strategy {' '.join(self.strategies)}: name each strategy once")
        largest = max(self.workers)
        if largest > self.model.most:
            raise UsageError(
                f"--workers {largest} do not fit the cluster, which has {self.model.most}; ask for at most that"
            )
        if self.money.samples is not None:
            self.money.shards(self.case("", largest))

    @property
    def most(self) -> int:
        """The largest number of workers that makes sense."""
        if self.scaling == "strong":
            return min(self.batch, self.model.most)
        return min(self.money.room(self.batch), self.model.most)

    def case(self, strategy: str, workers: int) -> Case:
        """The case of so many workers, on the network of the question."""
        strong = self.scaling == "strong"
        return Case(
            strategy=strategy,
            workers=workers,
            batch=-(-self.batch // workers) if strong else self.batch,
            total=self.batch if strong else self.batch * workers,
            servers=self.servers,
            jitter=self.jitter,
            network=self.network,
        )


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change, and the same question with it."""

    kind: str
    """What is changed, such as "network"; of each kind at most one is recommended."""
    what: str
    """As it is typed: "--network 100gbit"."""
    question: Question


@dataclass(frozen=True, kw_only=True)
class Gathers:
    """A codec whose messages everybody gets from everybody."""

    codec: str
    plain: CostModel
    """The same world with gradients as they are."""


def check_batch(batch: int, workers: Sequence[int], scaling: Scaling) -> None:
    """Refuse a batch that is none, or that leaves a worker without a sample."""
    if not 1 <= batch <= MOST_BATCH:
        raise UsageError(f"--batch-size {batch} is out of range: it must be 1 to {MOST_BATCH:,}")
    if scaling == "strong" and max(workers) > batch:
        raise UsageError(
            f"--workers {max(workers)}: a global batch of {batch} leaves some of them without a sample; "
            f"ask for at most {batch} workers or a larger --batch-size"
        )


def check_counts(workers: Sequence[int]) -> None:
    """Refuse worker counts that make no table."""
    if not workers:
        raise UsageError("--workers names no number: write counts such as 1,2,4,8 or 1-8")
    if len(workers) > MOST_COUNTS:
        raise UsageError(f"--workers gives {len(workers)} counts; ask for at most {MOST_COUNTS} at once")
    for count in workers:
        if not 1 <= count <= MOST_WORKERS:
            raise UsageError(f"--workers {count} is out of range: it must be 1 to {MOST_WORKERS:,}")


def parse_counts(text: str) -> tuple[int, ...]:
    """Read "1,2,4", "1-8" or both; the counts come back sorted, each once."""
    found: set[int] = set()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--workers {text}: {piece!r} is no count; write counts such as 1,2,4,8 or 1-8")
        low, high = int(first[:_DIGITS]), int((last or first)[:_DIGITS])
        if high < low:
            raise UsageError(f"--workers {text}: {piece!r} runs backwards; write {high}-{low}")
        check_counts((low,))
        check_counts((high,))
        check_counts(range(low, high + 1))
        found.update(range(low, high + 1))
    counts = tuple(sorted(found))
    check_counts(counts)
    return counts

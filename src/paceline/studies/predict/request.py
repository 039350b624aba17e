"""What a user asks for: names, counts and files, before any of them is looked up."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from paceline.clusters.cluster import Backend
from paceline.collectives import NATIVE, check_collective
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import check_servers
from paceline.runtimes.settings import MOST_SERVERS, Settings
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy

Scaling = Literal["weak", "strong"]
"""Weak: every worker keeps its batch. Strong: the batch of all workers together stays, each has its share."""

USUAL_NETWORK = "10gbit"
USUAL_BATCH = 32
USUAL_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_WORKERS = 1_000_000
MOST_COUNTS = 64
MOST_BATCH = 10_000_000

_DIGITS = 12
"""Of a count; one with more is out of range."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """One request; None means that a setting was not given. Contradictions are refused here.

    ``predict(PredictRequest(model="resnet50", device="a100", network="25gbit", workers=(1, 8)))``
    """

    model: str | None = None
    """A shipped model's spec, or the import path of one."""
    job: JobSpec | None = None
    """A whole job instead."""
    shape: tuple[int, ...] | None = None
    """Of one sample."""
    classes: int | None = None
    optimizer: str | None = None
    device: str | None = None
    precision: str | None = None
    """The number format in which a device of the catalogue computes."""
    threads: int | None = None
    """Of a CPU of the catalogue."""
    memory: str | None = None
    """Of a worker's GPU, or of a host whose CPU its workers share."""
    profile: Path | None = None
    """A file of 'paceline calibrate'."""
    times: Path | None = None
    """The run folder of one worker, whose step times are taken."""
    network: str | None = None
    per_host: int | None = None
    inside: str | None = None
    cluster: str | None = None
    backend: Backend | None = None
    """What all-reduces inside a measured machine go through."""
    workers: tuple[int, ...] | None = None
    batch_size: int | None = None
    """Samples of a mini-batch: of a worker, or of all workers together in strong scaling."""
    accumulate: int | None = None
    """Mini-batches of a step."""
    scaling: Scaling = "weak"
    strategies: tuple[str, ...] = ("all-reduce",)
    collective: str = NATIVE
    codec: str = "identity"
    servers: int = 1
    jitter: float | None = None
    """Standard deviation of the logarithm of compute times."""
    price: float = 0.0
    """Of a worker for an hour; 0 where there is none."""
    host_price: float = 0.0
    """Of a whole host for an hour, instead."""
    epochs: int | None = None
    samples: int | None = None
    """Of an epoch."""
    cost_model: Literal["paceline", "paleo"] = "paceline"
    ppp_comp: float | None = None
    """Paleo's platform percentage of peak, as a fraction: of the device."""
    ppp_comm: float | None = None
    """The same of the network."""

    def __post_init__(self) -> None:
        self._check_subject()
        self._check_compute()
        self._check_links()
        self._check_numbers()
        self._check_price()
        check_collective(self.collective)
        self._check_strategies()
        if self.workers is not None:
            check_counts(self.workers)

    @cached_property
    def built(self) -> tuple[Strategy, ...]:
        """The strategies."""
        return tuple(map(build_strategy, self.strategies))

    @property
    def served(self) -> bool:
        """Whether any strategy keeps the parameters on servers."""
        return any(strategy.served for strategy in self.built)

    def changed(self, setting: str, value: str) -> Self:
        """The request with another value of one setting, by its name on the command line."""
        if setting == "strategy":
            return replace(self, strategies=(value,), servers=1)
        changed: dict[str, Any] = {setting: int(value) if setting in ("batch_size", "servers") else value}
        return replace(self, **changed)

    def counts(self, most: int, batch: int) -> tuple[int, ...]:
        """The requested worker counts, or the usual ones of at most ``most`` that have work.

        A UsageError names those that a strategy cannot have.
        """
        least = max(strategy.least_workers for strategy in self.built)
        if self.workers is not None:
            self._check_rounds(min((least, *self.workers)))
            return self.workers
        if self.scaling == "strong":
            most = min(most, max(batch, 1))
        self._check_rounds(min(least, most))
        usual = {*USUAL_WORKERS, most} if most < USUAL_WORKERS[-1] else {*USUAL_WORKERS}
        return tuple(sorted(count for count in usual if least <= count <= most)) or (least,)

    def to_json(self) -> dict[str, Any]:
        """What was given, as a plain document."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}

    def _check_subject(self) -> None:
        if self.model is None and self.job is None and self.times is None:
            raise UsageError(
                "which model? name one, such as resnet50 ('paceline models' lists them), or give a job"
            )
        run, trained = (
            f"the run {self.times} says itself what was trained",
            {
                f"model {self.model}": self.model,
                "a job": self.job,
                "an input shape": self.shape,
                f"classes {self.classes}": self.classes,
                f"optimizer {self.optimizer}": self.optimizer,
                f"accumulate {self.accumulate}": self.accumulate,
            },
        )
        for what, value in trained.items():
            if self.times is not None and value is not None:
                raise UsageError(f"{run}, which {what} contradicts; leave one of them out")
        if self.model is not None and self.job is not None:
            raise UsageError(f"model {self.model} and a job both say what is trained; leave one of them out")
        if self.job is not None and (self.shape is not None or self.classes is not None):
            raise UsageError("a job's data says what a sample looks like; leave input shape and classes out")

    def _check_compute(self) -> None:
        sources = {"device": self.device, "times": self.times, "profile": self.profile}
        given = [name for name, value in sources.items() if value is not None]
        if not given and self.cluster is None:
            raise UsageError(
                "how fast does a worker compute? give a device (a name, see 'paceline devices'), a profile (a file "
                "of 'paceline calibrate') or the times of a run folder of one worker"
            )
        if "device" in given and len(given) > 1:
            raise UsageError(
                f"device {self.device} and {given[1]} {sources[given[1]]} both say how fast a worker computes; "
                "leave one of them out"
            )
        for setting, value in (("precision", self.precision), ("threads", self.threads)):
            if value is not None and self.device is None:
                raise UsageError(
                    f"{setting} {value} is a setting of a device of the catalogue; name a device or leave it out"
                )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads {self.threads} is too small: a worker needs at least 1")
        for setting, part in (("ppp-comp", self.ppp_comp), ("ppp-comm", self.ppp_comm)):
            if part is not None and self.cost_model != "paleo":
                raise UsageError(
                    f"{setting} {part:g} is a setting of Paleo's model; choose cost model paleo or leave it out"
                )

    def _check_links(self) -> None:
        measured = self.profile is not None and self.network is None and self.cluster is None
        if self.backend is not None and not measured:
            raise UsageError(
                f"backend {self.backend} is for workers that share a measured machine; give a profile and leave "
                "network and cluster out, or leave it out"
            )
        given = {"network": self.network, "per-host": self.per_host, "inside": self.inside}
        for setting, value in given.items():
            if self.cluster is not None and value is not None:
                raise UsageError(
                    f"{setting} {value} contradicts cluster {self.cluster}, which describes it itself; leave one out"
                )
        if self.per_host is not None and not 1 <= self.per_host <= MOST_WORKERS:
            raise UsageError(
                f"{self.per_host} workers per host are out of range: it must be 1 to {MOST_WORKERS:,}"
            )
        if self.inside is not None and self.per_host is None:
            raise UsageError(
                f"inside {self.inside} connects workers of one host, and each has one worker; say how many workers "
                "per host"
            )

    def _check_numbers(self) -> None:
        if not 1 <= self.servers <= MOST_SERVERS:
            raise UsageError(f"servers {self.servers} is out of range: it must be 1 to {MOST_SERVERS}")
        least = {
            "batch size": self.batch_size,
            "accumulate": self.accumulate,
            "samples": self.samples,
            "epochs": self.epochs,
        }
        for setting, count in least.items():
            if count is not None and count < 1:
                raise UsageError(f"{setting} {count} is too small: it must be at least 1")
        if not 0 <= (self.jitter or 0) <= 2:
            raise UsageError(
                f"jitter {self.jitter:g} is out of range: it must be 0 (none) to 2, for example 0.05"
            )
        if self.samples is not None and self.epochs is None:
            raise UsageError(f"samples {self.samples} of how many epochs? give epochs, or leave it out")

    def _check_price(self) -> None:
        for setting, price in (("price", self.price), ("price of a host", self.host_price)):
            if not 0 <= price < float("inf"):
                raise UsageError(f"{setting} {price:g} is out of range: it must be 0 or more, such as 3.06")
        if self.price and self.host_price:
            raise UsageError(
                f"price {self.price:g} is for each worker and {self.host_price:g} for each host: leave one of them out"
            )

    def _check_strategies(self) -> None:
        if not self.strategies or len(set(self.strategies)) < len(self.strategies):
            raise UsageError(f"strategies {' '.join(self.strategies)}: name each strategy once")
        if self.cost_model == "paleo":  # which has no strategies, and refuses all of this
            return
        served = [strategy.served for strategy in self.built]
        named = " ".join(self.strategies)
        if self.servers != 1 and not any(served):
            raise UsageError(
                f"{self.servers} servers do not go with strategy {named}, which keeps no parameters on servers; leave "
                "them out, or choose ps, ssp or async"
            )
        if self.collective != NATIVE and all(served):
            raise UsageError(
                f"collective {self.collective} does not go with strategy {named}, whose workers reduce nothing among "
                "themselves; leave it out, or choose all-reduce or local-sgd"
            )

    def _check_rounds(self, workers: int) -> None:
        """Refuse rounds that drop every gradient, as a run of ``workers`` workers does."""
        for spec, strategy in zip(self.strategies, self.built, strict=True):
            settings = Settings(job=JobSpec(), strategy=spec, batch_sizes=(1,) * workers, iterations=1)
            check_servers(settings, strategy)


def check_batch(batch: int, workers: Sequence[int], scaling: Scaling) -> None:
    if not 1 <= batch <= MOST_BATCH:
        raise UsageError(f"batch size {batch} is out of range: it must be 1 to {MOST_BATCH:,}")
    if scaling == "strong" and max(workers) > batch:
        raise UsageError(
            f"{max(workers)} workers: a global batch of {batch} leaves some of them without a sample; "
            f"ask for at most {batch} workers or a larger batch size"
        )


def check_counts(workers: Sequence[int]) -> None:
    if not workers:
        raise UsageError("workers names no number: write counts such as 1,2,4,8 or 1-8")
    if len(workers) > MOST_COUNTS:
        raise UsageError(
            f"{len(workers)} numbers of workers are too many; ask for at most {MOST_COUNTS} at once"
        )
    for count in workers:
        if not 1 <= count <= MOST_WORKERS:
            raise UsageError(f"workers {count} is out of range: it must be 1 to {MOST_WORKERS:,}")


def parse_counts(text: str) -> tuple[int, ...]:
    """Read "1,2,4", "1-8" or both; the counts come back sorted, each once."""
    found: set[int] = set()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"workers {text}: {piece!r} is no count; write counts such as 1,2,4,8 or 1-8")
        low, high = int(first[:_DIGITS]), int((last or first)[:_DIGITS])
        if high < low:
            raise UsageError(f"workers {text}: {piece!r} runs backwards; write {high}-{low}")
        for counts in ((low,), (high,), range(low, high + 1)):
            check_counts(counts)
        found.update(range(low, high + 1))
    check_counts(every := tuple(sorted(found)))
    return every

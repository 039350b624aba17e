"""A question in the user's words: names, counts and files, before any of them is looked up."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from paceline import specs
from paceline.clusters.cluster import Backend
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import check_servers
from paceline.runtimes.settings import MOST_SERVERS, Settings
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy
from paceline.studies.predict.question import MOST_WORKERS, USUAL_WORKERS, Scaling

USUAL_NETWORK = "10gbit"
USUAL_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """None means that nobody said so. Contradictions are refused here."""

    model: str | None = None
    """A shipped model's spec, or the import path of one."""
    job: JobSpec | None = None
    """A whole job instead."""
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    optimizer: str | None = None
    device: str | None = None
    precision: str | None = None
    """In which number format a device of the catalogue multiplies."""
    threads: int | None = None
    """Of a CPU of the catalogue."""
    memory: str | None = None
    """Of a worker's GPU, or of a host whose CPU its workers share."""
    profile: Path | None = None
    times: Path | None = None
    network: str | None = None
    per_host: int | None = None
    inside: str | None = None
    cluster: str | None = None
    backend: Backend | None = None
    """What all-reduces inside a measured machine go through."""
    workers: tuple[int, ...] | None = None
    batch: int | None = None
    """Of a mini-batch."""
    accumulate: int | None = None
    """Mini-batches of a step."""
    scaling: Scaling = "weak"
    strategies: tuple[str, ...] = ("all-reduce",)
    collective: str = "native"
    codec: str = "identity"
    servers: int = 1
    jitter: float | None = None
    price: float = 0.0
    host_price: float = 0.0
    epochs: int | None = None
    samples: int | None = None
    cost_model: Literal["paceline", "paleo"] = "paceline"
    ppp_comp: float | None = None
    """Paleo's platform percentage of peak, as a part of 1: of the device."""
    ppp_comm: float | None = None
    """The same of the network."""

    def __post_init__(self) -> None:
        self._check_subject()
        self._check_compute()
        self._check_place()
        if not 1 <= self.servers <= MOST_SERVERS:
            raise UsageError(
                f"--servers {self.servers} is out of range: 1 to {MOST_SERVERS} servers keep the parameters"
            )
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"--batch-size {self.batch} is too small: it must be at least 1")
        if self.accumulate is not None and self.accumulate < 1:
            raise UsageError(f"--accumulate {self.accumulate} is too small: it must be at least 1")

    def _check_subject(self) -> None:
        if self.model is None and self.job is None and self.times is None:
            raise UsageError(
                "which model? name one, such as resnet50 ('paceline models' lists them), or give --job"
            )
        self._check_times()
        if self.model is not None and self.job is not None:
            raise UsageError(f"model {self.model} and a job both say what is trained; leave one of them out")
        if self.job is not None and (self.shape is not None or self.classes is not None):
            raise UsageError("a job's data says what a sample looks like; leave --input and --classes out")

    def _check_times(self) -> None:
        """Refuse what the run says itself."""
        named = {
            f"model {self.model}": self.model,
            "a job": self.job,
            "--input": self.shape,
            f"--classes {self.classes}": self.classes,
            f"--optimizer {self.optimizer}": self.optimizer,
            f"--accumulate {self.accumulate}": self.accumulate,
        }
        for what, value in named.items():
            if self.times is not None and value is not None:
                raise UsageError(
                    f"--times {self.times} says itself what was trained, so {what} has no place; leave one of them out"
                )

    def _check_compute(self) -> None:
        named = {"--device": self.device, "--times": self.times, "--profile": self.profile}
        given = [option for option, value in named.items() if value is not None]
        if not given and self.cluster is None:
            raise UsageError(
                "how fast does a worker compute? give --device (a name, see 'paceline devices'), --profile (a file "
                "of 'paceline calibrate') or --times (a run folder of one worker)"
            )
        if "--device" in given and len(given) > 1:
            raise UsageError(
                f"--device {self.device} and {given[1]} {named[given[1]]} both say how fast a worker computes; "
                "leave one of them out"
            )

        for option, value in (("--precision", self.precision), ("--threads", self.threads)):
            if value is not None and self.device is None:
                raise UsageError(
                    f"{option} {value} is of a device of the catalogue; add --device or leave it out"
                )

        for option, part in (("--ppp-comp", self.ppp_comp), ("--ppp-comm", self.ppp_comm)):
            if part is not None and self.cost_model != "paleo":
                raise UsageError(
                    f"{option} {part:g} is of Paleo's model; add --cost-model paleo or leave it out"
                )

    def _check_place(self) -> None:
        measured = self.profile is not None and self.network is None and self.cluster is None
        if self.backend is not None and not measured:
            raise UsageError(
                f"--backend {self.backend} is of workers who share a measured machine; add --profile and leave "
                "--network and --cluster out, or leave it out"
            )
        given = {"--network": self.network, "--per-host": self.per_host, "--inside": self.inside}
        for option, value in given.items():
            if self.cluster is not None and value is not None:
                raise UsageError(
                    f"{option} {value} contradicts --cluster {self.cluster}, which says it itself; leave one out"
                )

        if self.per_host is not None and not 1 <= self.per_host <= MOST_WORKERS:
            raise UsageError(f"--per-host {self.per_host} is out of range: it must be 1 to {MOST_WORKERS:,}")

        if self.inside is not None and self.per_host is None:
            raise UsageError(
                f"--inside {self.inside} connects workers of one host, and each has one worker; add --per-host"
            )

    def counts(self, most: int, batch: int) -> tuple[int, ...]:
        """The worker counts that were asked for, or the usual ones that there is room and work for.

        A UsageError says which of them a strategy cannot do with.
        """
        built = [specs.build(strategy, STRATEGIES, "strategy") for strategy in self.strategies]
        least = max((strategy.least_workers for strategy in built), default=1)
        if self.workers is not None:
            self._check_rounds(built, min((least, *self.workers)))
            return self.workers
        if self.scaling == "strong":
            most = min(most, max(batch, 1))
        self._check_rounds(built, min(least, most))
        usual = {*USUAL_WORKERS, most} if most < USUAL_WORKERS[-1] else {*USUAL_WORKERS}
        return tuple(sorted(count for count in usual if least <= count <= most)) or (least,)

    def _check_rounds(self, built: Sequence[Strategy], workers: int) -> None:
        """Refuse rounds that drop every gradient, as a run of so many workers does."""
        for spec, strategy in zip(self.strategies, built, strict=True):
            settings = Settings(job=JobSpec(), strategy=spec, batch_sizes=(1,) * workers, iterations=1)
            check_servers(settings, strategy)

    def to_json(self) -> dict[str, Any]:
        """What was said, as a plain document; what was not said is left out."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: str(value) if isinstance(value, Path) else value for name, value in said.items()}

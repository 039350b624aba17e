"""What a user asks for: names, counts and files, before any of them is looked up."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from paceline.clusters.cluster import Backend
from paceline.collectives import NATIVE, check_collective
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import check_pairs
from paceline.runtimes.settings import MOST_SERVERS
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy

Scaling = Literal["weak", "strong"]
USUAL_NETWORK = "10gbit"
USUAL_BATCH = 32
USUAL_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_WORKERS = 1_000_000
MOST_COUNTS = 64
MOST_BATCH = 10_000_000
RANGES = {
    "servers": (1, MOST_SERVERS),
    "batch_size": (1, MOST_BATCH),
    "per_host": (1, MOST_WORKERS),
    "threads": (1, MOST_WORKERS),
    "accumulate": (1, MOST_BATCH),
    "samples": (1, float("inf")),
    "epochs": (1, float("inf")),
    "jitter": (0, 2),
    "price": (0, 1e15),
    "host_price": (0, 1e15),
}
CONFLICTS = (
    ("times", ("model", "job", "shape", "classes", "optimizer", "accumulate"), "what is trained"),
    ("job", ("model", "shape", "classes"), "what is trained"),
    ("device", ("times", "profile"), "how fast a worker computes"),
    ("cluster", ("network", "per_host", "inside"), "how workers are connected"),
    ("price", ("host_price",), "what a worker costs"),
)
NEEDS = {"precision": "device", "threads": "device", "inside": "per_host", "samples": "epochs"}


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """One request; None means that a setting was not given. Contradictions are refused here.

    ``predict(PredictRequest(model="resnet50", device="a100", network="25gbit", workers=(1, 8)))``
    """

    model: str | None = None
    job: JobSpec | None = None
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    optimizer: str | None = None
    device: str | None = None
    precision: str | None = None
    threads: int | None = None
    memory: str | None = None
    profile: Path | None = None
    times: Path | None = None
    """The run folder of one worker, whose step times are taken."""
    network: str | None = None
    per_host: int | None = None
    inside: str | None = None
    cluster: str | None = None
    backend: Backend | None = None
    workers: tuple[int, ...] | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    scaling: Scaling = "weak"
    strategies: tuple[str, ...] = ("all-reduce",)
    collective: str = NATIVE
    codecs: tuple[str, ...] = ("identity",)
    """The first is used; the others are compared with it, and all with identity."""
    servers: int = 1
    jitter: float | None = None
    """Standard deviation of the logarithm of compute times."""
    slow: tuple[tuple[int, float], ...] | None = None
    """Ranks that compute so many times as long as the others, where there are as many workers as ranks."""
    price: float = 0.0
    host_price: float = 0.0
    epochs: int | None = None
    samples: int | None = None
    cost_model: Literal["paceline", "paleo"] = "paceline"
    ppp_comp: float | None = None
    """Paleo's platform percentage of peak, as a fraction: of the device."""
    ppp_comm: float | None = None

    def __post_init__(self) -> None:
        for name in RANGES:
            check_range(name, getattr(self, name))
        for name, others, what in CONFLICTS:
            for other in others:
                if self._has(name) and self._has(other):
                    both = f"{self._shown(name)} and {self._shown(other)}"
                    raise UsageError(f"{both} both say {what}; leave one of them out")
        for name, other in NEEDS.items():
            if self._has(name) and not self._has(other):
                raise UsageError(
                    f"{self._shown(name)} needs {_words(other)}: give it, or leave {_words(name)} out"
                )
        self._check_sources()
        self._check_strategies()
        check_collective(self.collective)
        self._check_codecs()
        if self.workers is not None:
            check_counts(self.workers)

    @cached_property
    def built(self) -> tuple[Strategy, ...]:
        return tuple(map(build_strategy, self.strategies))

    @property
    def served(self) -> bool:
        return any(strategy.served for strategy in self.built)

    def changed(self, settings: Iterable[tuple[str, str]]) -> Self:
        """The request with other values of some settings, by their names on the command line."""
        changes: dict[str, Any] = {}
        for name, value in settings:
            if name == "strategy":
                changes |= {"strategies": (value,), "servers": 1}
            elif name == "codec":
                changes["codecs"] = (value,)
            else:
                changes[name] = int(value) if name in ("batch_size", "servers") else value
        return replace(self, **changes)

    def counts(self, most: int) -> tuple[int, ...]:
        fewest = most if self.workers is None else min(self.workers)
        for spec, strategy in zip(self.strategies, self.built, strict=True):
            if fewest < strategy.least_workers:
                raise UsageError(
                    f"strategy {spec!r} needs at least {strategy.least_workers} workers, and this run has {fewest}; "
                    "use more workers or change its settings"
                )
            if self.workers is not None and max(self.workers) > strategy.most_workers:
                raise UsageError(
                    f"strategy {spec!r} has work for at most {strategy.most_workers} workers, and this run has "
                    f"{max(self.workers)}; use fewer workers or change its settings"
                )
        if self.workers is not None:
            return self.workers
        least = max(strategy.least_workers for strategy in self.built)
        usual = {*USUAL_WORKERS, most} if most < USUAL_WORKERS[-1] else {*USUAL_WORKERS}
        return tuple(sorted(count for count in usual if least <= count <= most)) or (least,)

    def _has(self, name: str) -> bool:
        return getattr(self, name) not in (None, 0.0)

    def _shown(self, name: str) -> str:
        return "a job" if name == "job" else f"{_words(name)} {getattr(self, name)}"

    def _check_sources(self) -> None:
        if not (self.model or self.job or self.times):
            raise UsageError("which model? name one, such as resnet50 (see 'paceline models'), or give a job")
        if not (self.device or self.times or self.profile or self.cluster):
            raise UsageError(
                "how fast does a worker compute? give a device (see 'paceline devices'), a profile or a run's times"
            )
        if self.backend is not None and (self.profile is None or self.network or self.cluster):
            raise UsageError(
                f"backend {self.backend} is for a measured machine: give a profile, and neither network nor cluster"
            )
        for name in ("ppp_comp", "ppp_comm"):
            if getattr(self, name) is not None and self.cost_model != "paleo":
                raise UsageError(
                    f"{self._shown(name)} is one of Paleo's model; choose cost model paleo or leave it out"
                )

    def _check_strategies(self) -> None:
        named = " ".join(self.strategies)
        if not self.strategies or len(set(self.strategies)) < len(self.strategies):
            raise UsageError(f"strategies {named}: name each strategy once")
        if self.cost_model == "paleo":  # which has no strategies, and refuses all of this
            return
        check_servers(self.servers, self.strategies)
        if self.collective != NATIVE and all(strategy.served for strategy in self.built):
            raise UsageError(
                f"collective {self.collective} does not go with strategy {named}, which has servers; leave it out"
            )

    def _check_codecs(self) -> None:
        if not self.codecs or len(set(self.codecs)) < len(self.codecs):
            raise UsageError(f"codecs {' '.join(self.codecs)}: name each codec once")
        if self.cost_model == "paleo":
            return
        for spec, strategy in zip(self.strategies, self.built, strict=True):
            for codec in self.codecs:
                check_pairs(codec, spec, NATIVE if strategy.served else self.collective)


def check_range(name: str, value: float | None) -> None:
    """Refuse a value that lies outside the range of the setting; None was not given."""
    low, high = RANGES[name]
    if value is not None and not low <= value <= high:
        most = f"to {high:,}" if high < 1e15 else "or more"
        raise UsageError(f"{_words(name)} {value:.15g} is out of range: it must be {low} {most}")


def check_servers(servers: int, strategies: Iterable[str]) -> None:
    """Refuse several servers where no strategy has any."""
    if servers != 1 and not any(build_strategy(spec).served for spec in strategies):
        raise UsageError(
            f"{servers} servers do not go with strategy {' '.join(strategies)}; leave them out, or choose one with "
            "servers"
        )


def check_counts(workers: tuple[int, ...]) -> None:
    if not 1 <= len(workers) <= MOST_COUNTS:
        raise UsageError(f"{len(workers)} numbers of workers: ask for 1 to {MOST_COUNTS} at once")
    for count in workers:
        if not 1 <= count <= MOST_WORKERS:
            raise UsageError(f"workers {count} is out of range: it must be 1 to {MOST_WORKERS:,}")


def parse_counts(text: str) -> tuple[int, ...]:
    """Read "1,2,4", "1-8" or both; the counts come back sorted, each once."""
    found: set[int] = set()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", piece)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low:
            raise UsageError(f"workers {text}: {piece!r} is no count; write counts such as 1,2,4,8 or 1-8")
        found.update(range(low, min(high, low + MOST_COUNTS) + 1))
    check_counts(counts := tuple(sorted(found)))
    return counts


def _words(name: str) -> str:
    return name.replace("_", " ")

"""What a plan is asked for: a job, how much of it is trained, what hardware can be had, and by when or for how much."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from paceline.codecs import NO_CODEC, build_codec
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.strategies import build_strategy
from paceline.studies.convergence.study import Pair
from paceline.studies.plan.offers import Offer
from paceline.studies.predict.model import ONE_WORKER
from paceline.studies.predict.request import (
    USUAL_BATCH,
    PredictRequest,
    check_counts,
    check_range,
    check_servers,
)

USUAL_STRATEGIES = (ONE_WORKER, "local-sgd:period=8", "ps")
USUAL_CODECS = (NO_CODEC, "int8", "powersgd")
MULTIPLES = (1, 2, 4, 8)
"""Of the usual batch size, where none is given."""
USUAL_SERVERS = 4
"""Servers at most, where their number is not given, one a host: each more makes a prediction take much longer."""
MOST_CANDIDATES = 20_000


class Choice(NamedTuple):
    """One way to train: on which hardware, how many workers, how they agree."""

    offer: Offer
    batch: int
    strategy: str
    codec: str
    workers: int

    @property
    def pair(self) -> Pair:
        return Pair(self.strategy, self.codec)

    def __str__(self) -> str:
        return f"{self.workers} x {self.offer.label}, {self.pair}, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """None means that a setting was not given. Contradictions are refused here."""

    model: str | None = None
    job: JobSpec | None = None
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    optimizer: str | None = None
    precision: str | None = None
    epochs: int | None = None
    samples: int | None = None
    """Of an epoch, where the job does not say; without epochs, of the whole training."""
    offers: tuple[Offer, ...] = ()
    strategies: tuple[str, ...] = USUAL_STRATEGIES
    codecs: tuple[str, ...] = USUAL_CODECS
    workers: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] = tuple(USUAL_BATCH * times for times in MULTIPLES)
    """Samples of a worker's step; more make fewer exchanges and larger global batches."""
    servers: int | None = None
    """Of strategies that have them; one a host, up to four, where it is not given."""
    largest_batch: int | None = None
    """Of all workers together: what exceeds it is left out."""
    reference_batch: float | None = None
    """The global batch that the job is known to learn with; the smallest batch size where it is not given."""
    deadline: float | None = None
    """Seconds."""
    budget: float | None = None

    def __post_init__(self) -> None:
        if not self.offers:
            raise UsageError(
                "what hardware can be had? give its device and price, such as a100:price=2.5,most=8"
            )
        labels = [offer.label for offer in self.offers]
        if twice := next((one for one in labels if labels.count(one) > 1), None):
            raise UsageError(f"hardware {twice!r} is offered twice; leave one out, or name its networks")
        if self.epochs is None and self.samples is None:
            raise UsageError("how much is trained? give epochs, or samples")
        for name in ("deadline", "budget", "largest_batch", "reference_batch"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(
                    f"{name.replace('_', ' ')} {value:g} is out of range: it must be more than 0"
                )
        for name in ("epochs", "samples", "servers"):
            check_range(name, getattr(self, name))
        self._check_grid()
        check_servers(self.servers or 1, self.strategies)

    def _check_grid(self) -> None:
        for name in ("strategies", "codecs", "batch_sizes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                shown = " ".join(map(str, values))
                raise UsageError(f"{name.replace('_', ' ')} {shown}: name at least one, and each once")
        for batch in self.batch_sizes:
            check_range("batch_size", batch)
        if self.workers is not None:
            check_counts(self.workers)
        for spec in self.strategies:
            build_strategy(spec)
        for spec in self.codecs:
            build_codec(spec)
        if (many := sum(1 for _ in self.choices())) > MOST_CANDIDATES:
            raise UsageError(
                f"{many:,} ways to train are too many: at most {MOST_CANDIDATES:,}; name fewer workers, batch sizes, "
                "strategies or codecs"
            )

    @property
    def reference(self) -> float:
        return self.reference_batch or min(self.batch_sizes)

    def choices(self) -> Iterator[Choice]:
        """Every way that is considered. One worker alone exchanges nothing: it has one strategy and no codec."""
        alone = ONE_WORKER if ONE_WORKER in self.strategies else self.strategies[0]
        pairs = tuple(product(self.strategies, self.codecs))
        for offer, batch in product(self.offers, self.batch_sizes):
            for workers in self.workers or offer.counts:
                for strategy, codec in pairs if workers > 1 else ((alone, NO_CODEC),):
                    yield Choice(offer, batch, strategy, codec, workers)

    def servers_of(self, choice: Choice) -> int:
        """One a host where nothing else is asked for; workers of a measured machine share it."""
        offer = choice.offer
        if not build_strategy(choice.strategy).served:
            return 1
        here = offer.is_profile and offer.network is None
        return self.servers or (
            1 if here else min(USUAL_SERVERS, -(-choice.workers // (offer.per_host or 1)))
        )

    def predict_request(self, choice: Choice) -> PredictRequest:
        offer = choice.offer
        return PredictRequest(
            model=self.model,
            job=self.job,
            shape=self.shape,
            classes=self.classes,
            optimizer=self.optimizer if self.job is None else None,
            device=None if offer.is_profile else offer.device,
            profile=offer.profile,
            precision=self.precision,
            threads=None if offer.is_profile else offer.threads,
            memory=offer.memory,
            network=offer.network,
            per_host=offer.per_host,
            inside=offer.inside,
            workers=(choice.workers,),
            batch_size=choice.batch,
            strategies=(choice.strategy,),
            codecs=(choice.codec,),
            servers=self.servers_of(choice),
            price=offer.price or 0.0,
            host_price=offer.host_price or 0.0,
            epochs=self.epochs or 1,
            samples=self.samples,
        )

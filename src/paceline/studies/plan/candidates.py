"""Every way to train, priced: how long it takes, what it costs, and what is left out and why."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

from paceline.codecs import build_codec
from paceline.errors import UsageError
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy
from paceline.studies.plan.factors import SampleFactors
from paceline.studies.plan.request import Choice, PlanRequest
from paceline.studies.predict.model import HOUR, PacelineModel, ShowProgress, find_model
from paceline.studies.predict.setup import Setup

LARGE = 8
"""A global batch above this many reference batches is an unknown: larger ones took warm-up and tuning to work."""

Unknown = Literal["batch", "strategy", "codec"]
"""Why a way to train may need more samples to the same accuracy than plain SGD with the reference batch."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A way to train with its price; times are seconds, intervals hold 80 %."""

    hardware: str
    strategy: str
    codec: str
    workers: int
    hosts: int
    servers: int
    """0 for a strategy that has none."""
    batch: int
    """Samples of a mini-batch; a worker's step may have several."""
    global_batch: int
    """Samples of a step of all workers, with all mini-batches that they accumulate and all their learners."""
    steps: int
    factor: float
    """Samples to the target over those of the study's first pair; 1 where no study says."""
    unknowns: tuple[Unknown, ...]
    step: float
    rate: float
    sent: float
    memory: float
    time: float
    time_low: float
    time_high: float
    cost: float
    cost_low: float
    cost_high: float
    interval: Literal["simulated", "by parts"] = "by parts"
    """Whether the steps at both ends were worked out, or taken from the step's breakdown."""

    def with_interval(self, low: float, high: float) -> "Candidate":
        """With its step between these seconds."""
        down, up = low / self.step, high / self.step
        return replace(
            self,
            time_low=self.time * down,
            time_high=self.time * up,
            cost_low=self.cost * down,
            cost_high=self.cost * up,
        )


@dataclass(frozen=True)
class LeftOut:
    reason: str
    count: int
    example: str


class Priced(NamedTuple):
    candidate: Candidate
    choice: Choice
    model: PacelineModel
    setup: Setup

    def refined(self) -> Candidate:
        """With an interval whose ends are worked out, unless every worker would have to be simulated for each."""
        if self.model.step(self.setup).path == "events":
            return self.candidate
        found = self.candidate.with_interval(*self.model.interval(self.setup))
        return replace(found, interval="simulated")


class Excluded(Exception):
    """A choice that is left out; the message says why."""


class Pricer:
    """Prices one choice after another; the model is traced once for each batch size."""

    def __init__(self, request: PlanRequest, factors: SampleFactors, progress: ShowProgress) -> None:
        self.request, self.factors, self._progress = request, factors, progress
        self._like: PacelineModel | None = None
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._mistakes: list[UsageError] = []

    def price_all(self) -> list[Priced]:
        choices, found = list(self.request.choices()), []
        for number, choice in enumerate(choices, start=1):
            self._progress(f"{number} of {len(choices)}: {choice}")
            try:
                found.append(self._price(choice))
            except UsageError as error:
                self._mistakes.append(error)
                self._leave_out(choice, error)
            except Excluded as error:
                self._leave_out(choice, error)
        return found

    def _leave_out(self, choice: Choice, why: Exception) -> None:
        self._counts[str(why)] += 1
        self._first.setdefault(str(why), str(choice))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Most frequent reason first."""
        return tuple(LeftOut(why, many, self._first[why]) for why, many in self._counts.most_common())

    @property
    def refusal(self) -> UsageError:
        """Why nothing could be priced: the user's mistake, where there is only one, else the first reason."""
        first = self.left_out[0]
        if self._mistakes and len(self.left_out) == 1:
            return self._mistakes[0]
        return UsageError(f"nothing can be planned: {first.example}: {first.reason}")

    def _price(self, choice: Choice) -> Priced:
        self._check(choice)
        factor = self._factor(choice)
        model = find_model(self.request.predict_request(choice), like=self._like)
        self._like = model
        together = self._global_batch(model, choice)
        model.check()
        setup = model.setup(model.strategies[0], choice.workers)
        memory = model.memory_with(setup, setup.cost.samples // setup.learners)
        if not memory.fits:
            raise Excluded(f"needs more memory than {memory.device} has")
        step, rate = model.step(setup), model.rate(setup)
        seconds = model.finish(choice.workers, rate)
        assert seconds is not None, "a plan has epochs"
        time, hourly = factor * seconds, model.hourly(choice.workers)
        candidate = Candidate(
            hardware=choice.offer.label,
            strategy=model.strategies[0],
            codec=choice.codec,
            workers=choice.workers,
            hosts=model.deployment.hosts(choice.workers),
            servers=setup.servers if setup.program.served else 0,
            batch=choice.batch,
            global_batch=together,
            steps=round(time * rate / together),
            factor=factor,
            unknowns=tuple(self._unknowns(choice, together)),
            step=step.seconds,
            rate=rate,
            sent=step.sent,
            memory=memory.total,
            time=time,
            time_low=time,
            time_high=time,
            cost=hourly / HOUR * time,
            cost_low=0.0,
            cost_high=0.0,
        )
        return Priced(candidate.with_interval(*model.interval_by_parts(setup)), choice, model, setup)

    def _check(self, choice: Choice) -> None:
        """What needs no model."""
        offer = choice.offer
        if choice.workers > offer.most:
            raise Excluded(f"more workers than the {offer.most} of {offer.label}")
        if not offer.fills_hosts(choice.workers):
            raise Excluded(f"does not fill whole hosts of {offer.per_host} workers")
        if self._factor(choice) == inf:
            raise Excluded(f"{choice.pair} did not reach the target in the study")

    def _global_batch(self, model: PacelineModel, choice: Choice) -> int:
        learners = build_strategy(model.strategies[0]).learner_plan.count or 1
        together = model.samples(choice.workers) * learners
        if self.request.largest_batch is not None and together > self.request.largest_batch:
            raise Excluded(f"has a global batch of more than {self.request.largest_batch:,}")
        return together

    def _factor(self, choice: Choice) -> float:
        """One worker alone exchanges nothing, so that it needs what plain SGD needs."""
        return self.factors.factor(choice.pair) if choice.workers > 1 else 1.0

    def _unknowns(self, choice: Choice, together: int) -> Iterable[Unknown]:
        if together > LARGE * self.request.reference:
            yield "batch"
        if choice.workers == 1:
            return
        synchronous = is_synchronous(build_strategy(choice.strategy))
        if not (synchronous or self.factors.knows_strategy(choice.pair)):
            yield "strategy"
        if build_codec(choice.codec).compresses and not self.factors.knows_codec(choice.pair):
            yield "codec"


def is_synchronous(strategy: Strategy) -> bool:
    """Whether every step is one of plain SGD on the global batch."""
    return strategy.replicated or (strategy.served and strategy.staleness_bound == 0)

"""The cases of one request, each priced once, and how sure their step times are."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from paceline.costs.trace.operator import KINDS, kind_of
from paceline.errors import UsageError
from paceline.jobs.sharding import Shards
from paceline.studies.predict.model import Case, PacelineModel
from paceline.studies.predict.prediction import PredictedStep, PredictionRow, Setting
from paceline.studies.predict.request import MOST_BATCH, MOST_WORKERS
from paceline.studies.predict.setup import Change

ONE_WORKER = "all-reduce"
"""The strategy of one worker alone, which exchanges nothing."""
PERFECT = Change(transfers=1e-9)
"""Links on which transfers take almost no time."""
MILLION = 1_000_000
HOUR = 3600
NORMAL = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations."""
FOREIGN = 20.0
"""An operator of an unknown kind that was never measured may take so many times as long as guessed: the guess is one
pass over its memory, and a series, a transform or a decomposition takes many."""

Progress = Callable[[str], None]


class Pricing:
    """Asks a cost model for cases, and keeps its answers."""

    def __init__(self, model: PacelineModel, progress: Progress = lambda _: None) -> None:
        self.model, self.request, self.batch, self._progress = model, model.request, model.batch, progress
        self._check_length()
        self.workers = self.request.counts(self.most)
        self._check_workers(max(self.workers))
        self._steps: dict[Case, PredictedStep] = {}
        self.bounds = cache(model.bounds)
        self.memory = cache(model.memory)
        self.alone = self.rate(replace(self.case(ONE_WORKER, 1), servers=1))
        """Samples a second of one worker that trains alone."""

    @property
    def strong(self) -> bool:
        return self.request.scaling == "strong"

    @property
    def most(self) -> int:
        samples = self.model.epoch_samples
        data = MOST_WORKERS if samples is None else max(1, samples // self.batch)
        return min(self.batch if self.strong else data, self.model.deployment.most)

    def changed(self, settings: Iterable[Setting]) -> "Pricing":
        request = self.request
        for setting, value in settings:
            request = request.changed(setting, value)
        return Pricing(self.model.changed(request))

    def case(self, strategy: str, workers: int) -> Case:
        jitter = self.request.jitter
        return Case(
            strategy=strategy,
            workers=workers,
            batch=-(-self.batch // workers) if self.strong else self.batch,
            samples=self.batch if self.strong else self.batch * workers,
            servers=self.request.servers,
            jitter=self.model.deployment.jitter if jitter is None else jitter,
        )

    def step(self, case: Case) -> PredictedStep:
        if case not in self._steps:
            if case.workers in self.workers:  # others are tried to find where something changes
                self._progress(f"{case.strategy}, {case.workers:,} worker{'s' if case.workers > 1 else ''}")
            self._steps[case] = self.model.step(case)
        return self._steps[case]

    def seconds(self, case: Case) -> float:
        return self.step(case).seconds

    def rate(self, case: Case) -> float:
        """Samples a second of all workers; where shares differ, not all have as many as the largest."""
        return self.step(case).rate * case.samples / (case.workers * case.batch)

    def row(self, strategy: str, workers: int) -> PredictionRow:
        case = self.case(strategy, workers)
        cost, step, rate = self.model.cost(case.batch), self.step(case), self.rate(case)
        doubts = (cost.spread, self.model.deployment.spread, longest(cost.unmeasured))
        # Simulating every worker takes long: there, what hides behind backward is taken to stay hidden.
        simulated = step.path == "events"
        low, high = interval_by_parts(step, *doubts) if simulated else interval(case, self.seconds, *doubts)
        return PredictionRow(
            workers=workers,
            batch=case.batch,
            samples=case.samples,
            breakdown=step.breakdown,
            step=step.seconds,
            low=low,
            high=high,
            sent=step.sent,
            rate=rate,
            speed_up=rate / self.alone,
            efficiency=rate / self.alone / workers,
            bound=self.bounds(case).bound,
            path=step.path,
            memory=self.memory(case),
            **self._paid(case, rate),
        )

    def _paid(self, case: Case, rate: float) -> dict[str, Any]:
        """Time and cost at so many samples a second; a host that is partly used is paid whole."""
        request, finish = self.request, None
        hourly = case.workers * request.price
        if request.host_price:
            hourly = self.model.deployment.hosts(case.workers) * request.host_price
        if request.epochs is not None:
            finish = request.epochs * self._shards(case).steps_per_epoch * case.samples / rate
        return {
            "cost_million": hourly / HOUR / rate * MILLION if hourly else None,
            "finish": finish,
            "cost": hourly / HOUR * finish if hourly and finish is not None else None,
        }

    def _check_length(self) -> None:
        if self.request.epochs is not None and self.model.epoch_samples is None:
            raise UsageError(
                f"epochs {self.request.epochs} of how many samples? model {self.request.model!r} does not say: give "
                "samples"
            )
        if not 1 <= self.batch <= MOST_BATCH:
            raise UsageError(f"batch size {self.batch} is out of range: it must be 1 to {MOST_BATCH:,}")

    def _check_workers(self, largest: int) -> None:
        if self.strong and largest > self.batch:
            raise UsageError(
                f"{largest} workers: a global batch of {self.batch} leaves some of them without a sample; ask for at "
                f"most {self.batch} workers or a larger batch size"
            )
        if largest > self.model.deployment.most:
            raise UsageError(
                f"{largest} workers do not fit the cluster, which has {self.model.deployment.most}; ask for no more"
            )
        if self.model.epoch_samples is not None:
            self._shards(self.case("", largest))

    def _shards(self, case: Case) -> Shards:
        """The data cut into the batches of a case; a UsageError where one is larger than the data."""
        samples = self.model.epoch_samples
        assert samples is not None, "an epoch without a number of samples is refused"
        whole = case.samples == case.batch * case.workers
        sizes = (case.batch,) * case.workers if whole else (case.samples,)
        return Shards(samples=samples, batch_sizes=sizes, seed=0)


def guessed_share(unmeasured: Mapping[str, float]) -> float:
    names = {name: name.partition(" ")[0] for name in unmeasured}
    known = {name for name, one in names.items() if one in KINDS or kind_of(one) != "elementwise"}
    return sum(share for name, share in unmeasured.items() if name not in known)


def longest(unmeasured: Mapping[str, float]) -> float:
    """How many times as long computing takes if all such operators take as long as they may."""
    return 1 + (FOREIGN - 1) * guessed_share(unmeasured)


def interval(
    case: Case,
    seconds: Callable[[Case], float],
    compute_spread: float,
    links_spread: float,
    longer: float = 1.0,
) -> tuple[float, float]:
    """The 10th and the 90th percentile of the step time.

    Two independent errors, each a factor with a lognormal distribution: one on all of computing, one on all
    transfers. The step is worked out with each at its own percentiles, so what hides behind backward counts as it
    really does, and the two deviations are added as squares. The interval always holds the step itself. Upwards,
    computing may also take ``longer`` times as long by what was guessed.
    """
    middle = seconds(case)
    if middle <= 0:
        return middle, middle

    def moves(side: float) -> list[float]:
        compute = Change(compute=_factor(side, compute_spread, longer))
        links = Change(transfers=math.exp(side * links_spread))
        return [math.log(seconds(replace(case, change=change)) / middle) for change in (compute, links)]

    return _edges(middle, moves)


def interval_by_parts(
    step: PredictedStep, compute_spread: float, links_spread: float, longer: float = 1.0
) -> tuple[float, float]:
    """The same from the breakdown alone: computing moves its part of the step, the links theirs and waiting."""
    parts = step.breakdown

    def moves(side: float) -> list[float]:
        computed = parts.compute * (_factor(side, compute_spread, longer) - 1)
        carried = (parts.communicate + parts.wait) * (math.exp(side * links_spread) - 1)
        return [math.log1p(move / step.seconds) for move in (computed, carried)]

    return _edges(step.seconds, moves)


def _factor(side: float, spread: float, longer: float) -> float:
    return math.exp(side * spread) + (longer - 1 if side > 0 else 0.0)


def _edges(middle: float, moves: Callable[[float], list[float]]) -> tuple[float, float]:
    """``moves``: how far each error moves the step at one end, in logarithms; against its side is no move."""
    down = math.hypot(*(max(0.0, -move) for move in moves(-NORMAL)))
    up = math.hypot(*(max(0.0, move) for move in moves(NORMAL)))
    return middle * math.exp(-down), middle * math.exp(up)

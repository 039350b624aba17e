"""The cases of one request, each priced once, and how sure their step times are."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from paceline.costs.trace.operator import KINDS, kind_of
from paceline.errors import UsageError
from paceline.jobs.sharding import Shards
from paceline.studies.predict.model import Case, PacelineModel
from paceline.studies.predict.paleo import PaleoModel
from paceline.studies.predict.prediction import PredictedStep, PredictionRow, Setting
from paceline.studies.predict.request import MOST_WORKERS, PredictRequest, check_batch
from paceline.studies.predict.setup import Change

CostModel = PacelineModel | PaleoModel
"""What prices cases."""

ONE_WORKER = "all-reduce"
"""The strategy of one worker alone, which exchanges nothing."""

PERFECT = Change(transfers=1e-9)
"""Links on which transfers take almost no time."""

MILLION = 1_000_000
HOUR = 3600
Progress = Callable[[str], None]
"""Is told what is worked on, in words."""


def silent(words: str) -> None:
    """No progress is shown."""


class Pricing:
    """Asks the cost model for cases, and keeps its answers."""

    def __init__(
        self,
        request: PredictRequest,
        model: CostModel,
        *,
        remedies: Iterable[Setting] = (),
        roomier: Iterable[Setting] = (),
        progress: Progress = silent,
    ) -> None:
        """``remedies`` are changes that may make training faster, ``roomier`` ones that need less memory or have more.

        A UsageError says which number of workers or samples does not fit.
        """
        self.request, self.model, self._progress = request, model, progress
        self.remedies, self.roomier = tuple(remedies), tuple(roomier)
        self.batch = model.batch
        if request.epochs is not None and model.epoch_samples is None:
            raise UsageError(
                f"epochs {request.epochs} of how many samples? model {request.model!r} does not say: give samples"
            )
        most = model.most if request.scaling == "strong" else self.most
        self.workers = request.counts(most, self.batch)
        check_batch(self.batch, self.workers, request.scaling)
        largest = max(self.workers)
        if largest > model.most:
            raise UsageError(
                f"{largest} workers do not fit the cluster, which has {model.most}; ask for at most that"
            )
        if model.epoch_samples is not None:
            self._shards(self.case("", largest))
        self._steps: dict[Case, PredictedStep] = {}
        self._explained: dict[Case, PredictedStep] = {}
        self.alone = self.rate(replace(self.case(ONE_WORKER, 1), servers=1))
        """Samples a second of one worker that trains alone."""

    @property
    def most(self) -> int:
        """The largest number of workers that makes sense."""
        if self.request.scaling == "strong":
            return min(self.batch, self.model.most)
        samples = self.model.epoch_samples
        room = MOST_WORKERS if samples is None else max(1, samples // self.batch)
        return min(room, self.model.most)

    def changed(self, *settings: Setting) -> "Pricing":
        """The same of the request with other settings."""
        request = self.request
        for setting, value in settings:
            request = request.changed(setting, value)
        return Pricing(request, self.model.changed(request))

    def case(self, strategy: str, workers: int) -> Case:
        strong = self.request.scaling == "strong"
        return Case(
            strategy=strategy,
            workers=workers,
            batch=-(-self.batch // workers) if strong else self.batch,
            samples=self.batch if strong else self.batch * workers,
            servers=self.request.servers,
            jitter=self.model.jitter,
        )

    def step(self, case: Case) -> PredictedStep:
        if case in self._explained:
            return self._explained[case]
        if case not in self._steps:
            self._show(case)
            self._steps[case] = self.model.step(case)
        return self._steps[case]

    def explain(self, case: Case) -> PredictedStep:
        """The step with what bounds it."""
        if case not in self._explained:
            self._show(case)
            self._explained[case] = self.model.explain(case)
        return self._explained[case]

    def _show(self, case: Case) -> None:
        """Only of requested numbers; others are tried to find where something changes."""
        if case.workers in self.workers:
            self._progress(
                f"{case.strategy}, {case.workers:,} {'worker' if case.workers == 1 else 'workers'}"
            )

    def seconds(self, case: Case) -> float:
        return self.step(case).seconds

    def rate(self, case: Case) -> float:
        """Samples a second of all workers; where shares differ, not all have as many as the largest."""
        return self.step(case).rate * case.samples / (case.workers * case.batch)

    def row(self, strategy: str, workers: int) -> PredictionRow:
        case = self.case(strategy, workers)
        cost = self.model.cost(case.batch)
        step, rate = self.explain(case), self.rate(case)
        doubts = (cost.spread, self.model.links_spread, longest(cost.unmeasured))
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
            bound=step.bound,
            path=step.path,
            memory=self.model.memory(case),
            **self._paid(case, rate),
        )

    def _paid(self, case: Case, rate: float) -> dict[str, Any]:
        """Time and cost at so many samples a second; a host that is partly used is paid whole."""
        request = self.request
        hourly = case.workers * request.price + self.model.hosts(case.workers) * request.host_price
        price = hourly / HOUR if hourly else None
        finish = None
        if request.epochs is not None:
            steps = request.epochs * self._shards(case).steps_per_epoch
            finish = steps * case.samples / rate
        return {
            "cost_million": None if price is None else price / rate * MILLION,
            "finish": finish,
            "cost": None if price is None or finish is None else price * finish,
        }

    def _shards(self, case: Case) -> Shards:
        """The data cut into the batches of a case; a UsageError where one is larger than the data."""
        samples = self.model.epoch_samples
        assert samples is not None, "an epoch without a number of samples is refused"
        whole = case.samples == case.batch * case.workers
        sizes = (case.batch,) * case.workers if whole else (case.samples,)
        return Shards(samples=samples, batch_sizes=sizes, seed=0)


NORMAL = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations."""

FOREIGN = 20.0
"""An operator of an unknown kind that was never measured may take so many times as long as guessed: the guess is one
pass over its memory, and a series, a transform or a decomposition takes many."""


def guessed_share(unmeasured: Mapping[str, float]) -> float:
    """The share of computing, as guessed, in operators that have no measured relative."""
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
    edges = []
    for side in (-NORMAL, NORMAL):
        compute = Change(compute=_factor(side, compute_spread, longer))
        links = Change(transfers=math.exp(side * links_spread))
        moved = (seconds(replace(case, change=change)) for change in (compute, links))
        away = math.hypot(*(_logarithm(one, middle, side) for one in moved))
        edges.append(middle * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def interval_by_parts(
    step: PredictedStep, compute_spread: float, links_spread: float, longer: float = 1.0
) -> tuple[float, float]:
    """The same from the breakdown alone: computing moves its part of the step, the links theirs and waiting."""
    links = step.breakdown.communicate + step.breakdown.wait
    edges = []
    for side in (-NORMAL, NORMAL):
        parts = ((step.breakdown.compute, compute_spread, longer), (links, links_spread, 1.0))
        moves = (part * (_factor(side, *doubt) - 1) / step.seconds for part, *doubt in parts)
        away = math.hypot(*(math.log1p(move) for move in moves))
        edges.append(step.seconds * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def _factor(side: float, spread: float, longer: float) -> float:
    """By how much a part of a step differs at one end of its interval."""
    return math.exp(side * spread) + (longer - 1 if side > 0 else 0.0)


def _logarithm(moved: float, middle: float, side: float) -> float:
    """How far a step moved, in logarithms; against its side is no move."""
    return max(0.0, math.copysign(1.0, side) * math.log(moved / middle))

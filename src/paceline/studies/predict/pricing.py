"""The cases of one request, each priced once."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from paceline.errors import UsageError
from paceline.jobs.sharding import Shards
from paceline.studies.predict.interval import interval, interval_by_parts, longest
from paceline.studies.predict.model import Case, CostModel
from paceline.studies.predict.prediction import PredictedStep, PredictionRow, Setting
from paceline.studies.predict.request import MOST_WORKERS, PredictRequest, check_batch
from paceline.studies.predict.setup import Change

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

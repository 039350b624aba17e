"""A step by events: the strategy runs in virtual time for as long as it takes to know its pace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from paceline import specs
from paceline.clusters.cluster import Cluster
from paceline.clusters.times import StepTimes
from paceline.costs.base import Costs
from paceline.costs.given import given_costs
from paceline.errors import Mistake
from paceline.jobs.spec import JobSpec
from paceline.records.spans import StepRecord
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.recorder import TotalsOnly
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Meets, Served, Strategy
from paceline.strategies.periods import Seconds, Steps
from paceline.studies.predict.base import Setup
from paceline.studies.predict.parts import Noted, Parts, mean_step

MOST = 1_000_000
"""Steps of all workers together that are simulated for one answer: some ten seconds."""

DRAWS = 16_384
"""Steps of all workers together from which a mean is taken where they vary."""

AGREE = 0.005
"""Part by which two spans of a run with servers may differ before a longer one is simulated."""

LONG = 8_192
"""Steps of all workers together after which the later span of a run with servers is the answer, as it is."""


@dataclass
class Notes(TotalsOnly):
    """Keeps what each step of each worker took; meetings are no steps."""

    detailed: bool = True
    steps: dict[int, list[Noted]] = field(default_factory=dict)

    def stepped(self, rank: int, record: StepRecord) -> None:
        """Keep a step."""
        if not record.meeting:
            self.steps.setdefault(rank, []).append(Noted.of(record))


Weighted = Sequence[tuple[Sequence[Noted], int]]
"""Steps of some workers, and how many workers each of them stands for."""


def by_events(setup: Setup) -> Parts:
    """Simulate every worker. A Mistake says where that would take too long."""
    strategy = build_strategy(setup)

    def simulated(steps: int) -> Weighted:
        check_work(setup, steps)
        return [(noted, 1) for noted in run(setup, strategy, steps)]

    return long_run(setup, strategy, simulated, setup.cluster.workers)


def long_run(setup: Setup, strategy: Strategy, simulated: Callable[[int], Weighted], workers: int) -> Parts:
    """The mean step once the run has found its pace; ``workers`` are those that are simulated."""
    if isinstance(strategy, Served):
        return _settled(setup, simulated, workers)
    window = Window.of(setup, strategy)
    return mean_step([(window.cut(steps), many) for steps, many in simulated(window.last)])


@dataclass(frozen=True)
class Window:
    """Which steps of a run without servers count: whole periods, after the first one."""

    period: int
    """Steps of a worker from one exchange to the next."""
    times: int
    """Periods that count."""

    @classmethod
    def of(cls, setup: Setup, strategy: Strategy) -> "Window":
        """One period where all are alike, and where they vary as many as a mean needs."""
        period = _period(setup, strategy)
        if not setup.jitter:
            return cls(period, 1)
        return cls(period, ceil(_draws(setup.cluster.workers) / period))

    @property
    def last(self) -> int:
        """Steps of each worker to simulate."""
        return self.period * (1 + self.times)

    def cut(self, steps: Sequence[Noted]) -> Sequence[Noted]:
        """The steps that count; where periods are of equal times, from one exchange to another."""
        ends = [place + 1 for place, one in enumerate(steps) if one.sent]
        if len(ends) < 2:
            return steps[self.period :]
        return steps[ends[0] : ends[-1]]


def _settled(setup: Setup, simulated: Callable[[int], Weighted], workers: int) -> Parts:
    """Twice as long until two spans of the run are equally fast; the way that workers fall into takes its time."""
    steps = 16
    while True:
        found = simulated(steps)
        # Whoever comes to the last meeting first leaves the others more room: the run's end does not count.
        end = min(noted[-1].end for noted, _ in found)
        before, later = (_between(found, end * part, end * (part + 0.35)) for part in (0.25, 0.6))
        steps *= 2
        if before is not None and later is not None:
            steady = not setup.jitter and abs(before.rate / later.rate - 1) <= AGREE
            if steady or steps * workers > LONG:
                return later


def _between(workers: Weighted, begin: float, end: float) -> Parts | None:
    """The mean of the steps that ended between two times; None where a worker has too few."""
    found = [([one for one in steps if begin < one.end <= end], many) for steps, many in workers]
    return mean_step(found) if min(len(steps) for steps, _ in found) >= 4 else None


def run(setup: Setup, strategy: Strategy, steps: int) -> list[list[Noted]]:
    """Simulate so many steps; what each step of each worker took."""
    cluster, notes = timed(setup), Notes()
    settings = settings_of(setup, cluster.workers, steps)
    costs = costs_of(setup, cluster)
    simulate(
        settings,
        shape_of(setup, settings),
        cluster,
        costs,
        gradients=False,
        strategy=strategy,
        recorder=notes,
    )
    return [notes.steps[rank] for rank in range(cluster.workers)]


def build_strategy(setup: Setup) -> Strategy:
    """The strategy of the spec."""
    if setup.codec != "identity":
        raise Mistake(f"codec {setup.codec!r} cannot be predicted; choose identity")
    strategy: Strategy = specs.build(setup.strategy, STRATEGIES, "strategy")
    return strategy


def timed(setup: Setup) -> Cluster:
    """The cluster with the times of the step's cost."""
    cost, stated = setup.cost, setup.cluster.times
    times = StepTimes(
        data=cost.data,
        forward=cost.forward,
        backward=cost.backward,
        apply=cost.apply,
        serve=stated.serve,
        aggregate=stated.aggregate,
        jitter=setup.jitter,
    )
    return replace(setup.cluster, times=times)


def costs_of(setup: Setup, cluster: Cluster) -> Costs:
    """What effects cost on a cluster with these times."""
    return given_costs(cluster, (setup.cost.samples,) * cluster.workers, {}, setup.seed)


def settings_of(setup: Setup, workers: int, steps: int) -> Settings:
    """A run of so many steps, in which nobody evaluates or saves."""
    return Settings(
        job=JobSpec(),
        strategy=setup.strategy,
        batch_sizes=(setup.cost.samples,) * workers,
        iterations=steps,
        seed=setup.seed,
        evaluate=Every(0),
        checkpoint=Every(0),
        collective=setup.collective,
        servers=setup.servers,
    )


def shape_of(setup: Setup, settings: Settings) -> JobShape:
    """The job's shape, with so much data that no epoch ends."""
    ready = setup.shape.ready or setup.cost.ready
    samples = sum(settings.batch_sizes) * (2 * (settings.iterations or 1) + 1)
    return replace(setup.shape, ready=ready, train_samples=samples)


def check_work(setup: Setup, steps: int) -> None:
    """Refuse what would take too long."""
    workers = setup.cluster.workers
    check_steps(setup, steps)
    if steps * workers > MOST:
        raise Mistake(
            f"{workers:,} workers cannot be predicted with strategy {setup.strategy!r} on this cluster: it would take "
            f"{steps * workers:,} simulated steps, and at most {MOST:,} are; ask for fewer workers"
        )


def check_steps(setup: Setup, steps: int) -> None:
    """Refuse periods that would take too long."""
    if steps > MOST:
        raise Mistake(
            f"strategy {setup.strategy!r} cannot be predicted: two of its periods are {steps:,} steps, and at most "
            f"{MOST:,} are simulated; choose a shorter period"
        )


def _period(setup: Setup, strategy: Strategy) -> int:
    period = getattr(strategy, "period", None)
    if isinstance(period, Steps):
        return period.count
    if strategy.meets is not Meets.ROUND or not isinstance(period, Seconds):
        return 1
    fastest = max(host.device.speed for host in setup.cluster.hosts if host.workers)
    alone = (setup.cost.data + setup.cost.compute) / fastest
    if not alone > 0:
        raise Mistake(f"strategy {setup.strategy!r} never ends a period where a step takes no time")
    return ceil(period.length / alone)


def _draws(workers: int) -> int:
    """Steps of each worker from which a mean is taken where they vary."""
    return min(512, max(64, DRAWS // workers))

"""A step by events: every worker runs in virtual time for as long as it takes to know the pace."""

from dataclasses import replace

from paceline import specs
from paceline.clusters.cluster import StepTimes
from paceline.costs.device import StepCost
from paceline.costs.stated import stated_costs
from paceline.jobs.spec import JobSpec
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy
from paceline.studies.predict.base import Setup
from paceline.studies.predict.parts import Parts
from paceline.studies.predict.window import Notes, Pace, Weighted


def by_events(setup: Setup) -> Parts:
    """Simulate every worker. A UsageError says where that would take too long."""
    strategy = build_strategy(setup)
    times = replace(step_times(setup.cost, setup.cluster.times), jitter=setup.jitter)
    cluster = replace(setup.cluster, times=times)

    def simulated(steps: int) -> Weighted:
        notes, settings = Notes(), settings_of(setup, cluster.workers, steps)
        costs = stated_costs(cluster, settings.batch_sizes, {}, setup.seed)
        shape = shape_of(setup, settings)
        simulate(settings, shape, cluster, costs, gradients=False, strategy=strategy, recorder=notes)
        return [(notes.steps[rank], 1) for rank in range(cluster.workers)]

    fastest = max(group.host.device.speed for group in cluster.groups if group.workers)
    return Pace(
        strategy=strategy,
        spec=setup.strategy,
        alone=(setup.cost.data + setup.cost.compute) / fastest,
        workers=cluster.workers,
        jitter=setup.jitter,
        servers=setup.servers,
    ).long_run(simulated)


def build_strategy(setup: Setup) -> Strategy:
    """The strategy of the spec."""
    strategy: Strategy = specs.build(setup.strategy, STRATEGIES, "strategy")
    return strategy


def step_times(cost: StepCost, stated: StepTimes) -> StepTimes:
    """A worker's from its cost, and a server's as the cluster states them; without jitter."""
    return StepTimes(
        data=cost.data,
        forward=cost.forward,
        backward=cost.backward,
        apply=cost.apply,
        serve=stated.serve,
        aggregate=stated.aggregate,
    )


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

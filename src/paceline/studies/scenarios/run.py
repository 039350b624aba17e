"""``ask = "run"`` and ``ask = "crossover"``: a strategy's own program, run with stated times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from paceline import specs
from paceline.clusters.cluster import Cluster, Host
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.servers import Entry, Received, Updated
from paceline.records.spans import StepRecord
from paceline.records.summary import Summary
from paceline.runtimes.prepare import check_servers
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import check
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy
from paceline.studies.scenarios.scenario import Scenario
from paceline.studies.scenarios.work import MOST_STEPS, Work, read_step, read_work


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Updates of a server, one after the other, that are alike."""

    count: int
    workers: int
    """How many took part in each."""
    seconds: float
    """Of one of them, on average: since the update before, or since the beginning."""


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    """A run in virtual time."""

    strategy: str
    workers: tuple[str, ...]
    """The name of every worker's host, by rank."""
    seconds: float
    """Until the last update, where there are servers; else until the last worker has ended."""
    batches: int
    """Mini-batches that went into the model."""
    local_batches: int
    """Mini-batches of a worker between two exchanges, where a round is more than one."""
    compute: float
    """Seconds that a worker computes between two exchanges; the slowest one's."""
    communicate: float | None
    """Seconds of a worker over the whole run, on average; None where there are servers, and rounds tell it."""
    wait: float | None
    horizon: float | None
    updates: int
    rounds: tuple[Rounds, ...]
    """In order; empty where there are no servers, and where they are too many that differ."""
    unfinished: tuple[str, ...]
    """Workers that came and handed nothing in."""
    entries: tuple[Entry, ...]
    """The server's log, where the run is short enough to be told update by update."""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """A round with so many workers."""

    workers: int
    compute: float
    rest: float
    """All of the round that is no computation: messages, aggregation, updates, waiting."""


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """From how many workers the rest of a round takes longer than computing."""

    workers: int | None
    """None where it never does, up to the most that were tried."""
    most: int
    tried: tuple[Balance, ...]
    """By workers."""


MOST_ENTRIES = 1_000
"""Messages and updates that are kept, to tell a short run one by one."""
MOST_KINDS = 12
"""Kinds of rounds that are told apart."""


class RunLog(SimulationRecorder):
    """Follows the first server: what the rounds were like, and everything it did as long as that is short."""

    detailed = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rounds: list[Rounds] = []
        self.came: set[int] = set()
        self.handed_in: set[int] = set()
        self.exchanges: list[int] = []
        """The steps of worker 0 in which it sent something."""
        self.updates = 0
        self.last = 0.0

    def stepped(self, rank: int, record: StepRecord) -> None:
        if rank == 0 and record.is_step and record.sent:
            self.exchanges.append(record.step)

    def served(self, rank: int, entry: Entry) -> None:
        """Count what the first server does."""
        if rank:
            return
        if len(self.entries) < MOST_ENTRIES:
            self.entries.append(entry)
        match entry:
            case Updated():
                self._add(len(entry.used), entry.at - self.last)
                self.updates, self.last = entry.version, entry.at
            case Received(kind="Join"):
                self.came.add(entry.worker)
            case Received(kind="Push"):
                self.handed_in.add(entry.worker)

    def _add(self, workers: int, seconds: float) -> None:
        """One more of the same kind, or a new kind; beyond those that can be told, all are one."""
        same = self.rounds[-1] if self.rounds else None
        if same and same.workers == workers and isclose(same.seconds, seconds, rel_tol=1e-4):
            total = same.seconds * same.count + seconds
            self.rounds[-1] = replace(same, count=same.count + 1, seconds=total / (same.count + 1))
        elif len(self.rounds) <= MOST_KINDS:
            self.rounds.append(Rounds(count=1, workers=workers, seconds=seconds))


TOLD = 24
"""Updates up to which a run is told one by one."""
ENDLESS = 10**12
"""Steps that no worker takes: its own number of steps, or the horizon, ends the run."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that ``simulate`` is given."""

    settings: Settings
    shape: JobShape
    cluster: Cluster
    costs: StatedCosts
    strategy: Strategy
    local: int
    """Mini-batches of a worker's step."""

    @property
    def compute(self) -> float:
        """A step of the slowest worker."""
        sizes = self.settings.batch_sizes
        return max(sum(self.costs.gradient(rank, size, 0)) for rank, size in enumerate(sizes))


def run(scenario: Scenario) -> RunAnswer:
    """Read the file's [run] and cluster, and run it."""
    work = read_work(scenario.reader.table("run"))
    return run_work(work, scenario.cluster())


def run_work(work: Work, cluster: Cluster) -> RunAnswer:
    """Run on a cluster; a UsageError where that cannot be simulated."""
    plan = make_plan(work, cluster)
    log, summary = _simulate(plan, work)
    names = tuple(plan.cluster.hosts[place].name for place in plan.cluster.place_workers())
    served, totals = plan.strategy.served, summary.totals
    return RunAnswer(
        strategy=work.strategy,
        workers=names,
        seconds=log.last if served else summary.seconds,
        batches=_batches(plan, summary),
        local_batches=plan.local,
        compute=plan.compute,
        communicate=None if served else sum(one.seconds["communicate"] for one in totals) / len(totals),
        wait=None if served else sum(one.seconds["wait"] for one in totals) / len(totals),
        horizon=None if work.horizon == inf else work.horizon,
        updates=log.updates,
        rounds=tuple(log.rounds) if len(log.rounds) <= MOST_KINDS else (),
        unfinished=tuple(names[rank] for rank in sorted(log.came - log.handed_in)),
        entries=tuple(log.entries) if 0 < log.updates <= TOLD and len(log.entries) < MOST_ENTRIES else (),
    )


def _simulate(plan: RunPlan, work: Work) -> tuple[RunLog, Summary]:
    log = RunLog()
    summary = simulate(
        plan.settings,
        plan.shape,
        plan.cluster,
        plan.costs,
        gradients=False,
        strategy=plan.strategy,
        recorder=log,
        horizon=work.horizon,
    )
    return log, summary


def _batches(plan: RunPlan, summary: Summary) -> int:
    if summary.servers:
        return summary.servers[0].used * plan.local
    return sum(total.steps for total in summary.totals) * plan.local


def make_plan(work: Work, cluster: Cluster) -> RunPlan:
    """Deal the work out to the cluster's workers.

    A step of a worker is all that it does between two exchanges: one mini-batch, or its own epochs.
    """
    strategy: Strategy = specs.build(work.strategy, STRATEGIES, "strategy")
    workers = cluster.workers
    local, steps = work.local_batches(workers), work.steps(workers)
    iterations = ENDLESS
    if strategy.served:
        cluster = _deal(cluster, steps)
        workers = cluster.workers
    else:
        iterations = _same_for_all(work, steps)
    settings = Settings(
        job=JobSpec(),
        strategy=work.strategy,
        batch_sizes=(work.batch * local,) * workers,
        iterations=iterations,
        evaluate=Every(0),
        checkpoint=Every(0),
        collective=work.collective,
        servers=work.servers,
    )
    shape = JobShape(
        name="scenario",
        parameters=(work.parameters,),
        train_samples=sum(settings.batch_sizes),
        test_samples=0,
    )
    costs = stated_costs(cluster, (work.batch,) * workers, {})
    plan = RunPlan(
        settings=settings, shape=shape, cluster=cluster, costs=costs, strategy=strategy, local=local
    )
    check_servers(settings, strategy)
    check(settings, shape, cluster, strategy, False, work.horizon)
    _check_size(plan, work, steps)
    return plan


def _deal(cluster: Cluster, steps: Sequence[int]) -> Cluster:
    """Every host's workers leave after their steps; where the work says nothing, the hosts do."""
    if not steps[0]:
        return cluster
    for host in cluster.hosts:
        if host.steps is not None:
            raise UsageError(
                f"steps = {host.steps} of host {host.name!r} and the length in [run] contradict each other; "
                "leave one of them out"
            )
    hosts, rank = [], 0
    for host in cluster.hosts:
        hosts.append(_taking(host, steps[rank : rank + host.workers]))
        rank += host.workers
    return cluster.with_hosts(hosts)


def _taking(host: Host, steps: Sequence[int]) -> Host:
    """The host as its workers take so many steps each; one that gets none has no workers."""
    if len(set(steps)) > 1:
        raise UsageError(
            f"the {len(steps)} workers of host {host.name!r} do not get as many batches each "
            f"({', '.join(map(str, steps))}); give every worker a host of its own, or other batches"
        )
    if not steps:
        return host
    return replace(host, steps=steps[0]) if steps[0] else replace(host, workers=0)


def _same_for_all(work: Work, steps: Sequence[int]) -> int:
    if len(set(steps)) > 1:
        raise UsageError(
            f"{sum(steps):,} batches do not go evenly among {len(steps)} workers, and strategy {work.strategy!r} "
            f"needs every worker at every exchange; choose ps, or a multiple of {len(steps)}"
        )
    return steps[0] or ENDLESS


def _check_size(plan: RunPlan, work: Work, steps: Sequence[int]) -> None:
    """Refuse what would take for ever."""
    total: float = sum(steps)
    if work.horizon < inf:
        if not plan.compute:
            raise UsageError(
                "a gradient takes no time here, so the horizon is never reached; state forward or backward"
            )
        total = min(total or inf, plan.cluster.workers * work.horizon / plan.compute)
    if total > MOST_STEPS:
        raise UsageError(
            f"{total:,.0f} steps are too many for a scenario: at most {MOST_STEPS:,} of all workers"
        )


MOST = 1_024
"""Workers up to which it is tried, unless the file says otherwise."""
LIMIT = 4_096
"""The most that a file may say."""


def find_crossover(scenario: Scenario) -> Crossover:
    """Try numbers of workers, each a run of its own: twice as many until it is so, then halves in between.

    The rest of a round is taken to grow with the workers, as it does wherever there is a crossover at all.
    """
    reader = scenario.reader.table("crossover")
    most = reader.whole("most", MOST, least=1)
    if most > LIMIT:
        raise reader.wrong("most", most, f"choose at most {LIMIT:,}")
    reader.finish()
    work = read_step(scenario.reader.table("run"))
    tried: dict[int, Balance] = {}
    cluster = scenario.cluster()

    def beyond(workers: int) -> bool:
        tried[workers] = balance(work, widen(cluster, workers))
        return tried[workers].rest > tried[workers].compute

    found = _first(beyond, most)
    ordered = tuple(tried[workers] for workers in sorted(tried))
    return Crossover(workers=found, most=most, tried=ordered)


def _first(beyond: Callable[[int], bool], most: int) -> int | None:
    """The smallest number for which it is so; None where it is not up to the most."""
    low, high = 0, 1
    while not beyond(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


def balance(work: Work, cluster: Cluster) -> Balance:
    """A round in the long run: the second one, for the first may begin otherwise."""
    plan = make_plan(replace(work, iterations=1), cluster)
    if plan.strategy.served:
        rounds = run_work(replace(work, iterations=2), cluster).rounds
        seconds = rounds[-1].seconds
    else:
        period = _exchange_period(work, cluster)
        once, twice = (run_work(replace(work, iterations=many * period), cluster).seconds for many in (1, 2))
        seconds = (twice - once) / period
    return Balance(workers=cluster.workers, compute=plan.compute, rest=seconds - plan.compute)


def _exchange_period(work: Work, cluster: Cluster) -> int:
    """Steps of a worker from one exchange to the next, observed in runs that are twice as long each time."""
    steps = 2
    while cluster.workers > 1 and steps * cluster.workers <= MOST_STEPS:
        longer = replace(work, iterations=steps)
        log, _ = _simulate(make_plan(longer, cluster), longer)
        if len(log.exchanges) > 1:
            return log.exchanges[1] - log.exchanges[0]
        steps *= 2
    return 1


def widen(cluster: Cluster, workers: int) -> Cluster:
    """The same cluster with so many workers, each on a host like those that train in it."""
    training = [host for host in cluster.hosts if host.workers]
    like = training[0]
    for host in training:
        if host != like or host.workers > 1:
            raise UsageError(
                f"host {host.name!r} has {host.workers} workers or differs from {like.name!r}; to try other numbers "
                "of workers, all that train must be alike and have one worker each"
            )
    copies = (replace(like, name=f"{like.name}-{rank}") for rank in range(workers))
    return cluster.with_hosts([*copies, *(host for host in cluster.hosts if not host.workers)])

"""``ask = "run"``: run a strategy's own program with stated times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from paceline import specs
from paceline.clusters.cluster import Cluster, Host
from paceline.costs.given import StatedCosts, given_costs
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.summary import Summary
from paceline.runtimes.prepare import check_servers
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import check, simulate
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy
from paceline.studies.scenarios.answers import RunAnswer
from paceline.studies.scenarios.log import MOST_ENTRIES, MOST_KINDS, Log
from paceline.studies.scenarios.scenario import Scenario
from paceline.studies.scenarios.work import MOST_STEPS, Work, read_work

TOLD = 24
"""Updates up to which a run is told one by one."""
ENDLESS = 10**12
"""Steps that no worker takes: its own number of steps, or the horizon, ends the run."""


def run(scenario: Scenario) -> RunAnswer:
    """Read the file's [run] and cluster, and run it."""
    work = read_work(scenario.reader.table("run"))
    return run_work(work, scenario.cluster())


def run_work(work: Work, cluster: Cluster) -> RunAnswer:
    """Run on a cluster; a UsageError where that cannot be simulated."""
    plan = make_plan(work, cluster)
    log = Log()
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


def _batches(plan: "Plan", summary: Summary) -> int:
    if summary.servers:
        return summary.servers[0].used * plan.local
    return sum(total.steps for total in summary.totals) * plan.local


@dataclass(frozen=True, kw_only=True)
class Plan:
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


def make_plan(work: Work, cluster: Cluster) -> Plan:
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
    costs = given_costs(cluster, (work.batch,) * workers, {})
    plan = Plan(settings=settings, shape=shape, cluster=cluster, costs=costs, strategy=strategy, local=local)
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


def _check_size(plan: Plan, work: Work, steps: Sequence[int]) -> None:
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

"""``ask = "crossover"``: from how many workers on does the rest of a round take longer than computing?"""

from collections.abc import Callable
from dataclasses import replace

from paceline.clusters.cluster import Cluster
from paceline.errors import UsageError
from paceline.studies.scenarios.answers import Balance, Crossover
from paceline.studies.scenarios.run import make_plan, run_work
from paceline.studies.scenarios.scenario import Scenario
from paceline.studies.scenarios.work import Work, read_step

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
        period = getattr(getattr(plan.strategy, "period", None), "count", 1)
        once, twice = (run_work(replace(work, iterations=many * period), cluster).seconds for many in (1, 2))
        seconds = (twice - once) / period
    return Balance(workers=cluster.workers, compute=plan.compute, rest=seconds - plan.compute)


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

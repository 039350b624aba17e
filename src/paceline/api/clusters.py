"""Where a simulation takes place, as people say it: the cluster, its times, and when it ends."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from paceline.clusters.cluster import Cluster, StepTimes
from paceline.clusters.description import read_cluster
from paceline.costs.recorded import typical_step
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.errors import ArgumentError, UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import DEFAULT_WORKERS, Settings
from paceline.units import parse_seconds

LINK = "bandwidth=1 Gbit/s,latency=50 us"
TIMES = "data=0.1 ms,forward=0.7 ms,backward=1.3 ms,apply=0.1 ms"


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """None means that it was not given."""

    cluster: "str | Cluster | None" = None
    workers: int | None = None
    times: Path | None = None
    gradients: bool = True
    horizon: "str | float | None" = None

    @property
    def end(self) -> float:
        if not isinstance(self.horizon, str):
            return inf if self.horizon is None else float(self.horizon)
        try:
            return parse_seconds(self.horizon)
        except UsageError as mistake:
            raise ArgumentError.about("horizon", mistake) from mistake

    def read(self, default_workers: int = DEFAULT_WORKERS) -> Cluster:
        if self.workers is not None and self.workers < 1:
            raise ArgumentError("{workers} is too small: at least 1 worker must train", workers=self.workers)
        cluster = self.cluster
        if not isinstance(cluster, Cluster):
            times = "" if self.times else f",{TIMES}"
            cluster = read_cluster(cluster or f"hosts={self.workers or default_workers},{LINK}{times}")
        if self.workers is not None:
            cluster.check_workers(self.workers)
        if self.times and cluster.times != StepTimes():
            raise ArgumentError(
                "{times} and the cluster's own times contradict each other; leave one of them out",
                times=str(self.times),
            )
        return cluster

    def costs(self, cluster: Cluster, settings: Settings) -> StatedCosts:
        timed, sizes = self.timed(cluster, settings)
        return stated_costs(timed, sizes, settings.slow, settings.seed, settings.slow_turns)

    def timed(self, cluster: Cluster, settings: Settings) -> tuple[Cluster, tuple[int, ...]]:
        """The cluster with its times, stated or as a run was recorded, and the mini-batches that they hold for."""
        from paceline.runtimes.config import check_same_job, read_config
        from paceline.runtimes.threads import HostCapacity
        from paceline.strategies import build_strategy

        sizes = settings.batch_sizes
        if self.times:
            recorded = RunFolder(self.times)
            step, samples, checkpoint = typical_step(recorded)
            check_same_job(recorded, settings)
            if capacity := HostCapacity.of_run(recorded):
                capacity.check_hosts(cluster, f"times {self.times}")
            learners = build_strategy(read_config(recorded).settings.strategy).learner_plan.count or 1
            step = replace(step, apply=step.apply / learners)
            cluster = replace(cluster, times=StepTimes(step=step, checkpoint=checkpoint))
            sizes = (samples,) * cluster.workers
        return cluster, sizes

    @property
    def assumption(self) -> str:
        """A sentence about the step times where none were given; else nothing."""
        if self.cluster or self.times:
            return ""
        return (
            f"no step times were given, so this assumes {TIMES}; state them with a cluster, or times of a run"
        )

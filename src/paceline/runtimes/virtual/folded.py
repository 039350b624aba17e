"""A run in which one worker of each group of equal hosts stands for all of them; without gradients."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from paceline.clusters.cluster import Cluster, HostGroup
from paceline.costs.base import Costs
from paceline.costs.topology import Topology
from paceline.records.observer import Observer
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.run import Run
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.base import Strategy


class FoldedRun(Run):
    """Right for strategies in which workers of a group act in step: synchronous ones, as long as all are alike."""

    def __init__(
        self,
        settings: Settings,
        shape: JobShape,
        cluster: Cluster,
        places: Sequence[int],
        costs: Costs,
        strategy: Strategy,
        recorder: Recorder,
    ) -> None:
        """``settings`` and ``costs`` are of one worker a group; ``places`` are the groups of the servers' hosts."""
        hosts = (replace(group.host, workers=min(1, group.workers)) for group in cluster.groups)
        super().__init__(
            settings,
            shape,
            Cluster(groups=tuple(map(HostGroup, hosts))),
            costs,
            False,
            strategy,
            Observer(),
            recorder,
            "",
            None,
            inf,
        )
        self._whole, self._standing = cluster, places

    def _topology(self) -> Topology:
        return Topology(self._whole, by_group=True)

    def _places(self) -> Sequence[int]:
        return self._standing

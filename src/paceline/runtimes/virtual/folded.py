"""A run in which one worker of each kind stands for all of its kind; without gradients."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from paceline.clusters.cluster import Cluster
from paceline.costs.base import Costs
from paceline.costs.folded import Fold, Folded
from paceline.costs.topology import Topology
from paceline.records.observer import Observer
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.run import Run
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.base import Strategy


class FoldedRun(Run):
    """Right for strategies in which workers of a kind act in step: synchronous ones, as long as all are alike."""

    def __init__(
        self,
        settings: Settings,
        shape: JobShape,
        folding: Fold,
        places: Sequence[int],
        costs: Costs,
        strategy: Strategy,
        recorder: Recorder,
    ) -> None:
        """``settings`` and ``costs`` are of one worker a kind; ``places`` are the kinds on which servers stand."""
        few = tuple(replace(kind.host, workers=min(1, kind.host.workers)) for kind in folding.kinds)
        super().__init__(
            settings,
            shape,
            Cluster(hosts=few),
            costs,
            False,
            strategy,
            Observer(),
            recorder,
            "",
            None,
            inf,
        )
        self._folding, self._standing = folding, places

    def _topology(self) -> Topology:
        return Folded(self._folding)

    def _places(self) -> Sequence[int]:
        return self._standing

"""A run in which one worker of each kind stands for all of its kind; without gradients."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.clusters.cluster import Cluster
from paceline.costs.base import Costs
from paceline.costs.folded import Fold, Folded
from paceline.costs.topology import Topology
from paceline.records.observer import Silent
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.engine import VirtualEngine
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import run
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.base import Strategy


class FoldedRun(Simulation):
    """Right for strategies in which workers of a kind act in step: synchronous ones, as long as all are alike."""

    def __init__(
        self,
        settings: Settings,
        shape: JobShape,
        folding: Fold,
        places: Sequence[int],
        costs: Costs,
        strategy: Strategy,
        recorder: SimulationRecorder,
    ) -> None:
        """``settings`` and ``costs`` are of one worker a kind; ``places`` are the kinds on which servers stand."""
        few = tuple(replace(kind.host, workers=min(1, kind.host.workers)) for kind in folding.kinds)
        self._folding, self._standing = folding, places
        super().__init__(
            settings,
            shape,
            Cluster(hosts=few),
            costs,
            gradients=False,
            strategy=strategy,
            observer=Silent(),
            recorder=recorder,
        )

    def _place(self, servers: int) -> tuple[Topology, Sequence[int]]:  # noqa: ARG002
        return Folded(self._folding), self._standing

    def run(self) -> None:
        run(self, VirtualEngine(self))

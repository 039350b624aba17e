"""Small studies for tests: the digits, a small model, a few steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.clusters.description import read_cluster
from paceline.jobs.spec import JobSpec
from paceline.runtimes.settings import Cadence, Settings
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.result import CellResult, ConvergenceResult, Evaluation
from paceline.studies.convergence.run import run_study
from paceline.studies.convergence.study import ConvergenceStudy, GridCell, Pair, select

CLUSTER = "hosts=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms"
SPOILS = """
from dataclasses import dataclass

from paceline.strategies.base import Strategy, SyncPoint
from paceline.strategies.effects import Apply, Gradient


@dataclass(frozen=True, kw_only=True)
class Spoils(Strategy):
    raises: bool = False
    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me):
        while True:
            yield Gradient()
            yield Apply()
            if me.clock == 3:
                if self.raises:
                    raise ZeroDivisionError("nothing to divide")
                me.params.mul_(float("inf"))

    def central(self, me):
        yield from ()
        return me.params
"""


def study_of(*strategies: str, seeds: int = 1, evaluate: int = 3, **more: Any) -> ConvergenceStudy:
    """Six steps on two workers, unless ``more``, which are settings, says otherwise."""
    job = JobSpec(model="mlp", **more.pop("job", {}))
    codecs = more.pop("codecs", ("identity",))
    asked = {
        "job": job,
        "batch_sizes": (16, 16),
        "iterations": 6,
        "evaluate": Cadence(evaluate, "steps"),
        "checkpoint": Cadence(0),
    }
    settings = Settings(**(asked | more))
    return ConvergenceStudy(
        settings=settings,
        cluster=read_cluster(CLUSTER),
        sizes=settings.batch_sizes,
        strategies=strategies or ("all-reduce", "local-sgd:period=2"),
        codecs=codecs,
        seeds=tuple(range(1, seeds + 1)),
    )


def run(study: ConvergenceStudy, folder: Path, **more: Any) -> ConvergenceResult:
    return run_study(study, select(study), StudyFolder(folder), **more)


def cell_result(
    strategy: str, seed: int, *accuracies: float, every: float = 1.0, sent: int = 100, **more: Any
) -> CellResult:
    """A run by hand: an evaluation ``every`` so many seconds, ``sent`` bytes and 10 samples."""
    found = [
        Evaluation(
            seconds=place * every, sent=place * sent, samples=place * 10, accuracy=accuracy, loss=1 - accuracy
        )
        for place, accuracy in enumerate(accuracies, start=1)
    ]
    return CellResult(cell=GridCell(Pair(strategy), seed), evaluations=tuple(found), **more)


def three_seeds(study: ConvergenceStudy) -> ConvergenceStudy:
    return replace(study, seeds=(1, 2, 3))

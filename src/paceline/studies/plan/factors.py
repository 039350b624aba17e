"""How many more samples a strategy or a codec needs, as a study of convergence measured it."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Self

from paceline import specs
from paceline.codecs import CODECS, each_link
from paceline.errors import UsageError
from paceline.strategies import STRATEGIES
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.result import summarize
from paceline.studies.convergence.study import GridCell, Pair


@dataclass(frozen=True, kw_only=True)
class MeasuredPair:
    strategy: str
    codec: str
    factor: float
    """Samples to the target over those of the first pair; infinite where most of its runs never got there."""


@dataclass(frozen=True, kw_only=True)
class SampleFactors:
    """Factors by pair, relative to the study's first; without a study there are none, and samples are as asked."""

    study: str = ""
    first: str = ""
    target: float = 0.0
    workers: int = 0
    global_batch: int = 0
    """Of the study's runs: with another one the factors may differ."""
    pairs: tuple[MeasuredPair, ...] = ()

    @classmethod
    def read(cls, path: Path, target: float | None = None) -> Self:
        """Of the folder of a study, as far as its runs are done."""
        folder = StudyFolder(path)
        study = folder.read(trusted=True)
        cells = [GridCell(pair, seed) for pair in study.pairs for seed in study.seeds]
        results = list(folder.done(study, cells).values())
        if not results:
            raise UsageError(f"the study {path} has no run that is done; resume it first")
        found = summarize(study, path.name, results, target=target)
        base = found.baseline.samples.median
        if base == inf:
            raise UsageError(
                f"{found.first}, which the study {path} compares with, never reached {100 * found.target:g} %; train "
                "for longer there, or lower the target"
            )
        return cls(
            study=str(path),
            first=str(found.first),
            target=found.target,
            workers=study.settings.workers,
            global_batch=sum(study.settings.batch_sizes),
            pairs=tuple(
                MeasuredPair(
                    strategy=row.pair.strategy, codec=row.pair.codec, factor=row.samples.median / base
                )
                for row in found.rows
            ),
        )

    def knows(self, strategy: str, codec: str) -> bool:
        return self._find(strategy, codec) is not None

    def reaches(self, strategy: str, codec: str) -> bool:
        """Whether the target was reached, or nothing is known of it."""
        return self.factor(strategy, codec) < inf

    def factor(self, strategy: str, codec: str) -> float:
        found = self._find(strategy, codec)
        return 1.0 if found is None else found.factor

    def _find(self, strategy: str, codec: str) -> MeasuredPair | None:
        wanted = _plain(Pair(strategy, codec))
        return next((one for one in self.pairs if _plain(Pair(one.strategy, one.codec)) == wanted), None)


def _plain(pair: Pair) -> Pair:
    """However it is spelt: settings that have their defaults are left out."""
    codec = each_link(pair.codec, lambda link: specs.shorten(link, CODECS))
    return Pair(specs.shorten(pair.strategy, STRATEGIES), codec)

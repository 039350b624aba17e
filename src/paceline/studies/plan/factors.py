"""How many more samples a strategy or a codec needs, as a study of convergence measured it."""

from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path
from typing import Self

from paceline import specs
from paceline.codecs import CODECS, each_link
from paceline.errors import UsageError
from paceline.strategies import STRATEGIES
from paceline.studies.convergence.folder import read_convergence
from paceline.studies.convergence.study import Pair


@dataclass(frozen=True, kw_only=True)
class MeasuredPair:
    pair: Pair
    factor: float
    """Samples to the target over those of the first pair; infinite where most of its runs never got there."""


@dataclass(frozen=True, kw_only=True)
class SampleFactors:
    """Factors by pair, relative to the study's first; without a study there are none, and samples are as asked."""

    study: str = ""
    first: Pair | None = None
    target: float = 0.0
    workers: int = 0
    global_batch: int = 0
    """Of the study's runs: with another one the factors may differ."""
    pairs: tuple[MeasuredPair, ...] = ()

    @classmethod
    def read(cls, path: Path, target: float | None = None) -> Self:
        """Of the folder of a study, as far as its runs are done."""
        found = read_convergence(path, target)
        study = found.study
        base = found.baseline.samples.median
        if base == inf:
            raise UsageError(
                f"{found.first}, which the study {path} compares with, never reached {100 * found.target:g} %; train "
                "for longer there, or lower the target"
            )
        return cls(
            study=str(path),
            first=found.first,
            target=found.target,
            workers=study.settings.workers,
            global_batch=sum(study.settings.batch_sizes),
            pairs=tuple(MeasuredPair(pair=row.pair, factor=row.samples.median / base) for row in found.rows),
        )

    def knows_strategy(self, pair: Pair) -> bool:
        return self._find(pair) is not None or self._find(self._with_firsts_codec(pair)) is not None

    def knows_codec(self, pair: Pair) -> bool:
        return self._find(pair) is not None or self._find(self._with_firsts_strategy(pair)) is not None

    def factor(self, pair: Pair) -> float:
        """As measured; else the product of what its strategy and its codec needed alone; 1 for what is not known."""
        found = self._find(pair)
        if found is not None or self.first is None:
            return 1.0 if found is None else found.factor
        alone = map(self._find, (self._with_firsts_codec(pair), self._with_firsts_strategy(pair)))
        return prod(one.factor for one in alone if one is not None)

    def _with_firsts_codec(self, pair: Pair) -> Pair:
        return replace(pair, codec=self.first.codec) if self.first else pair

    def _with_firsts_strategy(self, pair: Pair) -> Pair:
        return replace(pair, strategy=self.first.strategy) if self.first else pair

    def _find(self, pair: Pair) -> MeasuredPair | None:
        wanted = _plain(pair)
        return next((one for one in self.pairs if _plain(one.pair) == wanted), None)


def _plain(pair: Pair) -> Pair:
    """However it is spelt: settings that have their defaults are left out."""
    codec = each_link(pair.codec, lambda link: specs.shorten(link, CODECS))
    return Pair(specs.shorten(pair.strategy, STRATEGIES), codec)

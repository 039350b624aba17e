"""What a study of convergence compares: strategies, codecs and seeds on one job and one cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from paceline.clusters.cluster import Cluster
from paceline.codecs import NO_CODEC, build_codec
from paceline.collectives import NATIVE
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.records.files import digest_of, to_document
from paceline.runtimes.config import import_paths, resolved
from paceline.runtimes.prepare import Prepared, check_settings, prepare_built, prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.simulation import check
from paceline.specs.source import fingerprints
from paceline.strategies import build_strategy

EVALUATIONS = 20
"""Evaluations of a run, where nothing else is asked for; at least one an epoch."""
SHIPPED = ("all-reduce", "local-sgd:period=8", "ps", "ssp:staleness=4", "async")
"""Compared where no strategy is named."""


@dataclass(frozen=True)
class Pair:
    """A strategy and a codec, as specs that are shown as they were given."""

    strategy: str
    codec: str = NO_CODEC

    def __str__(self) -> str:
        return self.strategy if self.codec == NO_CODEC else f"{self.strategy} with {self.codec}"


@dataclass(frozen=True)
class GridCell:
    """One run of the grid."""

    pair: Pair
    seed: int

    def __str__(self) -> str:
        return f"{self.pair}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class ConvergenceStudy:
    """A grid of simulated runs with true gradients; every run ends after the same number of samples.

    All that decides the result of a run is here. A target accuracy is not: it is read off the curves afterwards.
    """

    settings: Settings
    """Of every run, but for its strategy, codec and seed; servers and a collective only of those that have them."""
    cluster: Cluster
    sizes: tuple[int, ...]
    """Samples of each worker's mini-batch for which the cluster states its times."""
    strategies: tuple[str, ...] = SHIPPED
    codecs: tuple[str, ...] = (NO_CODEC,)
    seeds: tuple[int, ...] = (1, 2, 3)
    """More narrow the spread down and take as much longer."""

    def __post_init__(self) -> None:
        for what in ("strategies", "codecs", "seeds"):
            if not getattr(self, what):
                raise UsageError(f"a study without {what} compares nothing: name at least one")
        if not self.settings.evaluate.count:
            raise UsageError("a study without evaluations compares nothing: say how often to evaluate")
        if self.settings.target_accuracy is not None:
            raise UsageError("a study's runs go on after a target accuracy; leave it out of the settings")

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(dict.fromkeys(Pair(one, two) for one in self.strategies for two in self.codecs))

    def settings_of(self, cell: GridCell) -> Settings:
        settings = replace(self.settings, strategy=cell.pair.strategy, codec=cell.pair.codec, seed=cell.seed)
        served = [build_strategy(one).served for one in (cell.pair.strategy, *self.strategies)]
        if all(served) or not any(served):  # a setting that no strategy has a use for is refused
            return settings
        return replace(settings, collective=NATIVE) if served[0] else replace(settings, servers=1)

    def costs(self, settings: Settings) -> StatedCosts:
        return stated_costs(self.cluster, self.sizes, settings.slow, settings.seed, settings.slow_turns)

    def prepared(self, cell: GridCell, job: Job) -> Prepared[Job]:
        """Raises UsageError where the strategy, the codec, the job and the cluster do not go together."""
        prepared = prepare_built(self.settings_of(cell), job)
        check(prepared, self.cluster, True, inf)
        return prepared

    def words(self, cell: GridCell) -> str:
        return f"{cell.pair.strategy}-{cell.pair.codec}-seed-{cell.seed}"

    @property
    def variants(self) -> tuple[Settings, ...]:
        return tuple(replace(self.settings, strategy=one.strategy, codec=one.codec) for one in self.pairs)

    @property
    def common(self) -> dict[str, Any]:
        settings = to_document(resolved(self.settings))
        varied = ("job", "strategy", "codec", "seed")
        others = {name: value for name, value in settings.items() if name not in varied}
        return {**settings["job"], **others, "cluster": str(self.cluster), "times": self.cluster.times}

    @property
    def identity(self) -> str:
        common = replace(self.settings, strategy=Settings.strategy, codec=NO_CODEC, seed=Settings.seed)
        return digest_of([to_document(resolved(common)), to_document(self.cluster), self.sizes])

    def digest(self, cell: GridCell) -> str:
        settings = self.settings_of(cell)
        code = sorted(digest for path in import_paths(settings) for digest in fingerprints(path).values())
        return digest_of([to_document(resolved(settings)), to_document(self.cluster), self.sizes, code])


class Selection(NamedTuple):
    """What of a grid can be run, with the job that all runs share."""

    job: Job
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    """A sentence for each pair that does not go together."""

    def cells(self, seeds: Sequence[int]) -> tuple[GridCell, ...]:
        """Seed by seed, so that an interrupted study has something of every pair."""
        return tuple(GridCell(pair, seed) for seed in seeds for pair in self.pairs)


def select(study: ConvergenceStudy) -> Selection:
    """Build the job, and leave out what does not go together; raise UsageError where nothing is left."""
    for strategy in study.strategies:
        build_strategy(strategy)
    for codec in study.codecs:
        build_codec(codec)
    mistakes: dict[Pair, UsageError] = {}

    def fits(pair: Pair, check_cell: Callable[[GridCell], object]) -> bool:
        try:
            check_cell(GridCell(pair, study.seeds[0]))
        except UsageError as mistake:
            mistakes[pair] = mistake
        return pair not in mistakes

    pairs = [pair for pair in study.pairs if fits(pair, lambda cell: check_settings(study.settings_of(cell)))]
    job = _build(study) if pairs else None
    pairs = [pair for pair in pairs if job and fits(pair, lambda cell: study.prepared(cell, job))]
    if job is None or not pairs:
        raise next(iter(mistakes.values()))
    return Selection(job, tuple(pairs), tuple(f"{pair} is left out: {why}" for pair, why in mistakes.items()))


def _build(study: ConvergenceStudy) -> Job:
    job = build_job(study.settings.job)
    if job.test is None or "accuracy" not in job.metrics:
        raise UsageError(
            f"job {job.name!r} lacks test data or a metric named 'accuracy', which the runs are compared by; add "
            "test=... and the metric to the job"
        )
    return job


def with_evaluations(study: ConvergenceStudy, job: Job, times: int = EVALUATIONS) -> ConvergenceStudy:
    """The same study with about this many evaluations of each run, and at least one an epoch."""
    triggers = prepare_job(study.settings, job, build_strategy(study.settings.strategy)).triggers
    steps = min(triggers.steps_per_epoch, max(1, triggers.last // times))
    return replace(study, settings=replace(study.settings, evaluate=Cadence(steps, "steps")))

"""What a sweep measures: real trainings by number of workers, batch, strategy, codec, checkpoints or processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from paceline.codecs import NO_CODEC
from paceline.collectives import NATIVE
from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.files import digest_of, to_document
from paceline.runtimes.config import import_paths, resolved
from paceline.runtimes.prepare import check_settings, prepare_built
from paceline.runtimes.settings import Cadence, Settings
from paceline.specs.source import fingerprints
from paceline.strategies import build_strategy
from paceline.studies.predict.request import Scaling

SweepKind = Literal["scaling", "batch", "checkpoint", "processes"]
Loading = Literal["with", "without"]
PLAIN = Settings.strategy
"""The strategy of one worker alone, which exchanges nothing."""
NEVER = Cadence(0)
MOST_REPEATS, MOST_PROCESSES = 100, 256


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """What one run of a sweep has of its own."""

    batch: int
    """Samples of each worker's mini-batch."""
    workers: int = 1
    strategy: str = PLAIN
    codec: str = NO_CODEC
    loading: Loading = "with"
    """Whether every step gets a batch of its own, or the first one again."""
    checkpoint: Cadence = NEVER
    processes: int = 1
    """Equal trainings that go on side by side and know nothing of each other."""

    def __str__(self) -> str:
        several = f"{self.workers} worker{'s' if self.workers > 1 else ''} x batch {self.batch}"
        parts = [f"{self.processes} processes of {several}" if self.processes > 1 else several]
        parts += [self.strategy] if self.strategy != PLAIN else []
        parts += [self.codec] if self.codec != NO_CODEC else []
        parts += ["without data loading"] if self.loading == "without" else []
        parts += [f"checkpoint every {self.checkpoint}"] if self.checkpoint.count else []
        return ", ".join(parts)


@dataclass(frozen=True)
class SweepRun:
    """One of a cell's repeats, from 1."""

    cell: SweepCell
    repeat: int

    def __str__(self) -> str:
        return f"{self.cell}, repeat {self.repeat}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid of live trainings on this machine, each repeated.

    A cell of several workers is compared with one worker, which is trained by plain SGD whatever the strategy.
    """

    kind: SweepKind
    job: str
    """The job's name."""
    samples: int
    """Of its training data: an epoch."""
    settings: Settings
    """Of every run, but for what its cell says; servers and a collective only of those that have them."""
    machinery: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for of ``LiveOptions``."""
    seconds: float | None = 5.0
    """About how long each run trains; None is as long as the settings say. More narrows the spread."""
    batches: tuple[int, ...]
    """Of each worker; with strong scaling, of all workers together."""
    workers: tuple[int, ...] = (1,)
    scaling: Scaling = "weak"
    strategies: tuple[str, ...] = (PLAIN,)
    codecs: tuple[str, ...] = (NO_CODEC,)
    loading: tuple[Loading, ...] = ("with",)
    checkpoints: tuple[Cadence, ...] = (NEVER,)
    processes: tuple[int, ...] = (1,)
    repeats: int = 3

    def __post_init__(self) -> None:
        for what in ("batches", "workers", "strategies", "codecs", "loading", "checkpoints", "processes"):
            if not getattr(self, what):
                raise UsageError(f"a sweep without {what} measures nothing: name at least one")
        for what, values, most in (
            ("repeats", (self.repeats,), MOST_REPEATS),
            ("processes", self.processes, MOST_PROCESSES),
            ("workers", self.workers, MOST_PROCESSES),
            ("batch size", self.batches, 10**9),
        ):
            for value in values:
                if not 1 <= value <= most:
                    raise UsageError(f"{what} {value} is out of range: it must be 1 to {most:,}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise UsageError(f"{self.seconds:g} seconds a run are out of range: more than 0, such as 5")
        for batch in self.batches if self.scaling == "strong" else ():
            for workers in self.workers:
                if batch % workers:
                    raise UsageError(
                        f"a batch of {batch} cannot be divided evenly among {workers} workers, as strong scaling "
                        "does; choose a multiple"
                    )

    @cached_property
    def cells(self) -> tuple[SweepCell, ...]:
        """Each once; what others are compared with and predicted from comes first."""
        asked = [
            self._cell(
                batch, workers, loading, strategy=strategy, codec=codec, checkpoint=every, processes=many
            )
            for loading in self.loading
            for batch in self.batches
            for workers in self.workers
            for strategy in self.strategies
            for codec in self.codecs
            for every in self.checkpoints
            for many in self.processes
        ]
        bases = [found for cell in asked for found in (self.base(cell), self.reference(cell))]
        return tuple(dict.fromkeys([*sorted(bases, key=lambda one: one.batch), *asked]))

    def _cell(self, batch: int, workers: int, loading: Loading, **more: Any) -> SweepCell:
        if workers == 1 and self.kind != "checkpoint":
            more |= {"strategy": PLAIN, "codec": NO_CODEC}
        share = batch // workers if self.scaling == "strong" else batch
        return SweepCell(batch=share, workers=workers, loading=loading, **more)

    def base(self, cell: SweepCell) -> SweepCell:
        """What a cell is compared with: one worker, no checkpoints, one process; of batches, the smallest."""
        if self.kind == "checkpoint":
            return replace(cell, checkpoint=NEVER)
        if self.kind == "batch":
            return replace(cell, batch=min(self.batches))
        whole = cell.batch * (cell.workers if self.scaling == "strong" else 1)
        return SweepCell(batch=whole, loading=cell.loading)

    def reference(self, cell: SweepCell) -> SweepCell:
        """One worker with the batch that each worker of a cell has: what it computes, alone."""
        return SweepCell(batch=cell.batch, loading=cell.loading)

    @property
    def runs(self) -> tuple[SweepRun, ...]:
        """Repeat by repeat, so that all cells see the same machine, and an interrupted sweep has some of each.

        Within a repeat, a cell comes right after what it is compared with and predicted from: a machine that is slower
        in one minute than in the next is then as slow for both.
        """
        compared = [cell for cell in self.cells if self.base(cell) != cell]
        found = (one for cell in compared for one in (self.base(cell), self.reference(cell), cell))
        turns = tuple(dict.fromkeys([*found, *self.cells]))
        return tuple(SweepRun(cell, repeat) for repeat in range(1, self.repeats + 1) for cell in turns)

    def settings_of(self, cell: SweepCell) -> Settings:
        served = build_strategy(cell.strategy).served
        return replace(
            self.settings,
            strategy=cell.strategy,
            codec=cell.codec,
            batch_sizes=(cell.batch,) * cell.workers,
            checkpoint=cell.checkpoint,
            servers=self.settings.servers if served else 1,
            collective=NATIVE if served or cell.workers == 1 else self.settings.collective,
        )

    def check(self, job: Job) -> None:
        """Refuse cells that cannot be trained, before the first one is, and settings that none of them uses."""
        self._check_used()
        for cell in self.cells:
            settings = self.settings_of(cell)
            check_settings(settings)
            prepare_built(settings, job)

    def _check_used(self) -> None:
        used, asked = list(map(self.settings_of, self.cells)), self.settings
        if asked.servers != 1 and all(one.servers == 1 for one in used):
            raise UsageError(
                f"servers {asked.servers}: no cell of this sweep has servers; leave the setting out, or sweep a "
                "strategy that has them"
            )
        if asked.collective != NATIVE and all(one.collective == NATIVE for one in used):
            raise UsageError(
                f"collective {asked.collective}: no cell of this sweep has several workers that reduce among "
                "themselves; leave the setting out, or sweep such cells"
            )

    @property
    def variants(self) -> tuple[Settings, ...]:
        return tuple(
            replace(self.settings, strategy=strategy, codec=codec)
            for strategy in self.strategies
            for codec in self.codecs
        )

    @property
    def common(self) -> dict[str, Any]:
        settings = to_document(resolved(self.settings))
        length = ("epochs", "iterations") if self.seconds is not None else ()
        varied = ("job", "strategy", "codec", "batch_sizes", "checkpoint", *length)
        others = {name: value for name, value in settings.items() if name not in varied}
        own = {"kind": self.kind, "seconds": self.seconds, "machinery": dict(self.machinery)}
        return {**own, **settings["job"], **others}

    @property
    def identity(self) -> str:
        return digest_of(self.common)

    def digest(self, run: SweepRun) -> str:
        code = sorted(
            digest
            for path in import_paths(self.settings_of(run.cell))
            for digest in fingerprints(path).values()
        )
        return digest_of([self.common, to_document(run), code])

    def words(self, run: SweepRun) -> str:
        return f"{run.cell}-{run.repeat}"

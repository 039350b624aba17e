"""One run, resolved: everything that decides its result, and when to evaluate, save and stop."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import maxsize
from typing import Any, Literal, NamedTuple, Self, TypeVar

from paceline.collectives import NATIVE, check_collective
from paceline.errors import ArgumentError, UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.files import digest_of, from_document, to_document

T = TypeVar("T")
DEFAULT_WORKERS = 2
DEFAULT_BATCH = "32"
DEFAULT_EPOCHS = 30
"""Of a run that says nothing of them."""
MOST_SERVERS = 64
"""Servers of one run: each is a process, and every worker sends to all of them at every step."""


@dataclass(frozen=True)
class Cadence:
    """A cadence in steps or epochs; a count of 0 is never."""

    count: int
    unit: Literal["steps", "epochs"] = "epochs"

    @classmethod
    def parse(cls, text: str, argument: str) -> Self:
        """Read "500 steps", "2 epochs", "2" (epochs) or "never"; ``argument`` names what is read, for a message."""
        words = text.split()
        if words in (["never"], ["0"]):
            return cls(0)
        unit = words[1].rstrip("s") + "s" if len(words) == 2 else "epochs"
        if len(words) not in (1, 2) or not words[0].isdecimal() or unit not in ("steps", "epochs"):
            shown = repr(text).replace("{", "{{").replace("}", "}}")
            raise ArgumentError(
                f"{shown} is not a value for {{{argument}}}: write '500 steps', '2 epochs' or 'never'",
                **{argument: None},
            )
        return cls(int(words[0]), unit)  # type: ignore[arg-type]

    def in_steps(self, steps_per_epoch: int) -> int:
        return self.count if self.unit == "steps" else self.count * steps_per_epoch

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.count} {unit}" if self.count else "never"


@dataclass(frozen=True, kw_only=True)
class Settings:
    job: JobSpec
    strategy: str = "all-reduce"
    batch_sizes: tuple[int, ...] = (32, 32)
    epochs: int | None = None
    iterations: int | None = None
    """Steps a worker; where workers differ, their mean."""
    target_accuracy: float | None = None
    seed: int = 1
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rank to factor: a rank with 2.5 takes 2.5 times as long to compute."""
    slow_turns: int = 0
    """Slow ranks alternate between this many slow steps and as many at full speed; 0: always slow."""
    evaluate: Cadence = Cadence(1)
    checkpoint: Cadence = Cadence(1)
    keep: int = 3
    buffers: Literal["average", "rank0"] = "average"
    """Batch-norm statistics: averaged when the model is evaluated, or rank 0's, broadcast at every step."""
    collective: str = NATIVE
    """How all-reduces are carried out: by the backend itself, or by the schedule of this name."""
    codec: str = "identity"
    """What is sent in place of whole gradients, or of differences of parameters."""
    servers: int = 1
    """How many servers keep the parameters, where the strategy has servers; each keeps an even part."""
    scale_lr: Literal["none", "linear", "sqrt"] = "none"
    """What multiplies the learning rate for a global batch of k reference batches: nothing, k, or its square root."""
    reference_batch: float | None = None
    """The batch that the learning rate was chosen for; None is the mean mini-batch of a worker. Less scales more."""

    def __post_init__(self) -> None:
        check_collective(self.collective)
        target, least = self.target_accuracy, min(self.batch_sizes, default=1)
        for fine, sentence in (
            (self.batch_sizes, "0 workers cannot train: use at least 1"),
            (least >= 1, f"a batch size of {least} is too small: it must be at least 1"),
            (
                1 <= self.servers <= MOST_SERVERS,
                f"{self.servers} servers are out of range: 1 to {MOST_SERVERS}",
            ),
            (
                self.job.is_script or (self.epochs is None) != (self.iterations is None),
                "give either epochs or iterations, not both",
            ),
            (
                target is None or 0 < target <= 1,
                f"a target accuracy of {target} must lie between 0 and 1, such as 0.97",
            ),
            (0 <= self.seed < 2**63, f"seed {self.seed} is out of range: at least 0 and less than 2**63"),
            (
                self.reference_batch is None or 0 < self.reference_batch < float("inf"),
                f"a reference batch of {self.reference_batch} is out of range: it must be more than 0, such as 256",
            ),
            (
                self.reference_batch is None or self.scale_lr != "none",
                f"a reference batch of {self.reference_batch or 0:g} has no use where the learning rate is not scaled; "
                "scale it linearly or by the square root, or leave the reference out",
            ),
            (self.slow_turns >= 0, f"slow turns of {self.slow_turns} steps are too short: use 0 for always"),
            (
                self.slow or not self.slow_turns,
                f"slow turns of {self.slow_turns} steps need slow ranks: name them",
            ),
        ):
            if not fine:
                raise UsageError(sentence)
        for what in ("epochs", "iterations", "keep"):
            count = getattr(self, what)
            if count is not None and count < 1:
                things = "checkpoints to keep" if what == "keep" else what
                raise UsageError(f"{count} {things} are too few: there must be at least 1")
        for rank, factor in self.slow.items():
            if not 0 <= rank < self.workers:
                raise UsageError(
                    f"slow rank {rank}={factor:g}: there is no rank {rank}; ranks are 0 to {self.workers - 1}"
                )
            if not 1 <= factor < float("inf"):
                raise UsageError(
                    f"slow rank {rank}={factor:g}: the factor must be at least 1, for example {rank}=2.5"
                )

    @property
    def workers(self) -> int:
        return len(self.batch_sizes)

    @property
    def reference(self) -> float:
        """Samples of the batch that the learning rate was chosen for."""
        return self.reference_batch or sum(self.batch_sizes) / self.workers


def read_exactly(document: Any, kind: type[T]) -> T:
    """The value that ``to_document`` gave; a UsageError names a field of another type or says that there are more."""
    try:
        value = from_document(document, kind)
        if digest_of(to_document(value)) != digest_of(document):
            raise ValueError("there are other fields")
    except ValueError as error:
        raise UsageError(f"{kind.__name__} of another version of paceline: {error}") from error
    return value


class DueActions(NamedTuple):
    evaluate: bool
    checkpoint: bool
    stop: bool


class Triggers:
    """Turns progress, in steps per worker, into what is due. A script is ``endless``: it ends when it ends.

    Where workers take different numbers of steps, progress is their mean, so it may pass several trigger points at
    once; each kind of action is then done once.
    """

    def __init__(self, settings: Settings, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        epochs, self.endless = settings.epochs or 0, settings.job.is_script
        self.last = settings.iterations if settings.iterations is not None else epochs * steps_per_epoch
        if self.endless:
            self.last = maxsize
        self._evaluate = settings.evaluate.in_steps(steps_per_epoch)
        self._checkpoint = settings.checkpoint.in_steps(steps_per_epoch)

    def next(self, progress: int) -> int:
        cadences = [every for every in (self._evaluate, self._checkpoint) if every]
        return min([self.last, *(progress - progress % every + every for every in cadences)])

    def due(self, before: int, progress: int) -> DueActions:
        """What fell due after ``before``, up to and including ``progress``; at the end every kind of action is due."""
        stop = progress >= self.last

        def reached(every: int) -> bool:
            return bool(every) and (stop or before // every != progress // every)

        return DueActions(reached(self._evaluate), reached(self._checkpoint), stop)

    def epoch(self, progress: float) -> float:
        """0 where nobody knows what an epoch is."""
        return 0.0 if self.endless else progress / self.steps_per_epoch

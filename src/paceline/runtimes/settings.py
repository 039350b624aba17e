"""One run, resolved: everything that decides its result, and nothing that depends on where it runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_type_hints

from paceline.collectives import NATIVE, check_collective
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.typed import WrongType, check_type

MOST_SERVERS = 64
"""Servers of one run: each is a process, and every worker sends to all of them at every step."""


@dataclass(frozen=True)
class Every:
    """A cadence: every so many steps or epochs, or never."""

    count: int
    unit: Literal["steps", "epochs"] = "epochs"

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        """Read "500 steps", "2 epochs", "2" (epochs) or "never"."""
        words = text.split()
        if words in (["never"], ["0"]):
            return cls(0)
        unit = words[1].rstrip("s") + "s" if len(words) == 2 else "epochs"
        if len(words) not in (1, 2) or not words[0].isdecimal() or unit not in ("steps", "epochs"):
            raise UsageError(
                f"{text!r} is not a value for {option}: write '500 steps', '2 epochs' or 'never'"
            )
        return cls(int(words[0]), unit)  # type: ignore[arg-type]

    def in_steps(self, steps_per_epoch: int) -> int:
        """The cadence in steps; 0 is never."""
        return self.count if self.unit == "steps" else self.count * steps_per_epoch

    def __str__(self) -> str:
        return f"{self.count} {self.unit}" if self.count else "never"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained, how the workers agree and when to stop; the same for both runtimes."""

    job: JobSpec
    strategy: str = "all-reduce"
    batch_sizes: tuple[int, ...] = (32, 32)
    """One mini-batch size a worker."""
    epochs: int | None = None
    iterations: int | None = None
    """Steps a worker; where workers differ, their mean."""
    target_accuracy: float | None = None
    seed: int = 1
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rank to factor: a rank with 2.5 takes 2.5 times as long to compute."""
    slow_turns: int = 0
    """Steps for which the slow ranks are slow before they are not for as many; 0 is always."""
    evaluate: Every = Every(1)
    checkpoint: Every = Every(1)
    keep: int = 3
    """How many checkpoints are kept."""
    buffers: Literal["average", "rank0"] = "average"
    """Batch-norm statistics: averaged when the model is looked at, or rank 0's, broadcast at every step."""
    collective: str = NATIVE
    """How all-reduces are carried out: by the backend's own way, or by the schedule of this name."""
    servers: int = 1
    """How many servers keep the parameters, where the strategy has servers; each keeps an even part."""

    def __post_init__(self) -> None:
        workers = len(self.batch_sizes)
        if workers < 1:
            raise UsageError("0 workers cannot train: --workers must be at least 1")
        if bad := [size for size in self.batch_sizes if size < 1]:
            raise UsageError(f"a batch size of {bad[0]} is too small: --batch-size must be at least 1")
        if not 1 <= self.servers <= MOST_SERVERS:
            raise UsageError(
                f"--servers {self.servers} is out of range: 1 to {MOST_SERVERS} servers keep the parameters"
            )
        check_collective(self.collective)
        if (self.epochs is None) == (self.iterations is None):
            raise UsageError("give either --epochs or --iterations, not both")
        for option, count in (
            ("--epochs", self.epochs),
            ("--iterations", self.iterations),
            ("--keep", self.keep),
        ):
            if count is not None and count < 1:
                raise UsageError(f"{option} {count} is too small: it must be at least 1")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise UsageError(
                f"--target-accuracy {self.target_accuracy:g} must lie between 0 and 1, for example 0.97"
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is out of range: it must be at least 0 and less than 2**63")
        if self.slow_turns < 0:
            raise UsageError(f"--slow-turns {self.slow_turns} is too small: give steps, or 0 for always")
        if self.slow_turns and not self.slow:
            raise UsageError(
                f"--slow-turns {self.slow_turns} says when slow ranks are slow, and none is; add --slow"
            )
        for rank, factor in self.slow.items():
            if not 0 <= rank < workers:
                raise UsageError(
                    f"--slow {rank}={factor:g}: there is no rank {rank}; ranks are 0 to {workers - 1}"
                )
            if not 1 <= factor < float("inf"):
                raise UsageError(
                    f"--slow {rank}={factor:g}: the factor must be at least 1, for example {rank}=2.5"
                )

    @property
    def workers(self) -> int:
        """How many workers train."""
        return len(self.batch_sizes)

    def step_sizes(self, accumulate: int) -> tuple[int, ...]:
        """Samples of each worker in a step that is made of so many mini-batches."""
        return tuple(size * accumulate for size in self.batch_sizes)

    def to_json(self) -> dict[str, Any]:
        """A plain document; ``from_json`` reads it back."""
        return {
            **asdict(self),
            "batch_sizes": list(self.batch_sizes),
            "slow": {str(rank): factor for rank, factor in self.slow.items()},
            "evaluate": str(self.evaluate),
            "checkpoint": str(self.checkpoint),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote; a UsageError says what is not of its kind."""
        hints = {**get_type_hints(cls), "slow": dict[str, float], "evaluate": str, "checkpoint": str}
        if set(document) != set(hints):
            raise UsageError(f"these are not the settings of a run: they are not {', '.join(sorted(hints))}")
        try:
            for name, hint in hints.items():
                check_type(document[name], hint, name)
            return cls._from_checked(document)
        except WrongType as error:
            raise UsageError(f"these are not the settings of a run: {error}") from error

    @classmethod
    def _from_checked(cls, document: Mapping[str, Any]) -> Self:
        values = dict(document)
        values["job"] = JobSpec(**values["job"])
        values["batch_sizes"] = tuple(values["batch_sizes"])
        if not all(rank.isascii() and rank.isdecimal() for rank in values["slow"]):
            raise WrongType(f"slow is {values['slow']!r}")
        values["slow"] = {int(rank): factor for rank, factor in values["slow"].items()}
        values["evaluate"] = Every.parse(values["evaluate"], "evaluate")
        values["checkpoint"] = Every.parse(values["checkpoint"], "checkpoint")
        return cls(**values)

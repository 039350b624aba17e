"""What an evaluation found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

TEST_LOSS = 2
"""Where a vector of sums has that of the test loss; 0 where nothing was tested."""


@dataclass(frozen=True)
class Scores:
    """Means over the training samples since the last evaluation, and over the test data."""

    train_loss: float
    test_loss: float | None
    """None where there is no test data."""
    metrics: Mapping[str, float]

    @classmethod
    def from_sums(cls, sums: Sequence[float], names: Sequence[str]) -> Self:
        """Read sums over samples: [train loss, train samples, test loss, test samples, one a metric]."""
        train_loss, trained, test_loss, tested, *values = sums
        return cls(
            train_loss=train_loss / trained if trained else float("nan"),
            test_loss=test_loss / tested if tested else None,
            metrics={name: value / tested for name, value in zip(names, values, strict=True)},
        )


@dataclass(frozen=True)
class MetricsRow:
    """One evaluation: when, and how good the model that counts was."""

    step: int
    epoch: float
    scores: Scores
    learning_rate: float
    seconds: float
    """Seconds since the run began: wall time live, simulated time otherwise."""

    def to_json(self) -> dict[str, Any]:
        """One flat line of ``metrics.jsonl``."""
        return {
            "step": self.step,
            "epoch": round(self.epoch, 6),
            "train_loss": self.scores.train_loss,
            **({} if self.scores.test_loss is None else {"test_loss": self.scores.test_loss}),
            **self.scores.metrics,
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; null, which stands for a number that is not finite, becomes nan."""
        values = {key: float("nan") if value is None else value for key, value in line.items()}
        step, epoch, rate, seconds, train_loss = (
            values.pop(key) for key in ("step", "epoch", "learning_rate", "seconds", "train_loss")
        )
        scores = Scores(train_loss=train_loss, test_loss=values.pop("test_loss", None), metrics=values)
        return cls(step=int(step), epoch=epoch, scores=scores, learning_rate=rate, seconds=seconds)

"""How long the parts of a step take, where somebody says so."""

from dataclasses import dataclass

from paceline.errors import UsageError


def takes_turn(rank: int, step: int, turns: int) -> bool:
    """Whether a slowed rank is slow in a step: always, or for ``turns`` steps in turn with as many at full speed.

    Even ranks begin with their slow steps and odd ones with their fast ones, so that two of them take turns.
    """
    return turns == 0 or (step // turns + rank) % 2 == 0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Stated seconds, on a device of speed 1, for a whole mini-batch of the worker's own size."""

    data: float = 0.0
    """Getting the mini-batch."""
    forward: float | None = None
    backward: float | None = None
    apply: float = 0.0
    """The optimizer's step."""
    evaluate: float | None = None
    """Evaluating as many samples as a mini-batch has; None takes as long as forward."""
    checkpoint: float = 0.0
    """Writing one checkpoint, whatever its size."""
    serve: float = 0.0
    """What a server spends on one message."""
    aggregate: float = 0.0
    """What a server spends on each gradient of an update, once all of them have come."""
    jitter: float = 0.0
    """Spread of the compute times: 0 is none, 0.1 varies a typical step by a tenth, drawn from the seed."""

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 2:
            raise UsageError(
                f"a jitter of {self.jitter:g} cannot be: it must lie between 0 (none) and 2, for example 0.1"
            )

"""How long an effect takes here: the question that every source of costs answers."""

from typing import NamedTuple, Protocol


class Times(NamedTuple):
    """The parts of one gradient, in seconds."""

    data: float
    forward: float
    backward: float


class Costs(Protocol):
    """Seconds of everything that happens on one worker or server; links are priced elsewhere."""

    @property
    def steady(self) -> bool:
        """Whether a step takes as long as the one before, so that prices may be asked for once."""

    def gradient(self, rank: int, samples: int, step: int) -> Times:
        """Data, forward and backward of one mini-batch."""

    def apply(self, rank: int, step: int) -> float:
        """The optimizer's step."""

    def evaluate(self, rank: int, samples: int) -> float:
        """Scoring so many samples."""

    def checkpoint(self, rank: int, size: int) -> float:
        """Writing a checkpoint of so many bytes."""

    def serve(self, rank: int, size: int) -> float:
        """What a server spends on a message of so many bytes before it goes on."""

    def update(self, rank: int, share: float, gradients: int) -> float:
        """A server brings so many gradients together and takes the optimizer's step on its share of the parameters."""

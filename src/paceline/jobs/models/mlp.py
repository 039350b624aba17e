from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from torch import nn

from paceline.jobs.checks import at_least
from paceline.jobs.looks import ImageLook


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A multi-layer perceptron: every pixel to every unit."""

    hidden: int = 64
    """Units in each hidden layer; more learn more and send more."""

    layers: int = 1
    """Hidden layers; 0 is logistic regression."""

    usual: ClassVar[ImageLook] = ImageLook(shape=(1, 8, 8), classes=10)

    def __post_init__(self) -> None:
        at_least(1, hidden=self.hidden)
        at_least(0, layers=self.layers)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, then linear layers with a ReLU between them."""
        sizes = [prod(shape), *[self.hidden] * self.layers]
        hidden = [layer for ins, outs in pairwise(sizes) for layer in (nn.Linear(ins, outs), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))

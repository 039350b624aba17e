"""Small models: a multi-layer perceptron and a lean convolutional network."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, ClassVar

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.specs.ranges import AtLeastOne, RangeChecked, at_least


@dataclass(frozen=True, kw_only=True)
class Mlp(RangeChecked):
    """A multi-layer perceptron: every pixel to every unit."""

    hidden: AtLeastOne = 64
    """Units in each hidden layer; more learn more and send more."""
    layers: Annotated[int, at_least(0)] = 1
    """Hidden layers; 0 is logistic regression."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(1, 8, 8), classes=10)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        sizes = [prod(shape), *[self.hidden] * self.layers]
        hidden = [layer for ins, outs in pairwise(sizes) for layer in (nn.Linear(ins, outs), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))


@dataclass(frozen=True, kw_only=True)
class Cnn(RangeChecked):
    """The lean convolutional network: 6 and 16 filters of 5x5, 64 units."""

    first: AtLeastOne = 6
    """Filters of the first convolution."""
    second: AtLeastOne = 16
    """Filters of the second convolution."""
    hidden: AtLeastOne = 64
    """Units of the fully connected layer; most of the parameters are in front of it."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(1, 8, 8), classes=10)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Twice convolve, ReLU and halve by max-pooling, then two linear layers; LeNet's shape on 28x28 and more.

        Images with a side under 12 are padded, since a 5x5 filter would eat most of them; pooling stops where it
        would leave a side under 4.
        """
        ins, *sides = shape
        layers: list[nn.Module] = []
        for outs in (self.first, self.second):
            padding = 2 if min(sides) < 12 else 0
            layers += [nn.Conv2d(ins, outs, 5, padding=padding), nn.ReLU()]
            sides = [side + 2 * padding - 4 for side in sides]
            if min(sides) >= 8:
                layers.append(nn.MaxPool2d(2))
                sides = [side // 2 for side in sides]
            ins = outs
        dense = [nn.Linear(ins * prod(sides), self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes)]
        return nn.Sequential(*layers, nn.Flatten(), *dense)

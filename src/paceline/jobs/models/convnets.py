"""The older convolutional networks: AlexNet in its two usual versions, VGG-16 and network in network."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import after, chain, start_convolutions

Dense = Literal["linear", "convolution"]


@dataclass(frozen=True, kw_only=True)
class AlexNet:
    """AlexNet (Krizhevsky et al., 2012), its two columns as grouped convolutions."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=63)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        # Two pixels of padding make 224 pixels what the paper's sizes need: it says 224 and counts as for 227.
        return _alexnet(shape, classes, (96, 256, 384, 384, 256), padding=2, columns=2, dense="linear")


@dataclass(frozen=True, kw_only=True)
class AlexNetV2:
    """AlexNet of "one weird trick" (Krizhevsky, 2014), as TF-slim and Paleo have it."""

    dense: Dense = "convolution"
    """The last three layers: convolution, as TF-slim and Paleo write them, or linear, which is the same."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=67)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _alexnet(shape, classes, (64, 192, 384, 384, 256), padding=0, columns=1, dense=self.dense)


def _alexnet(
    shape: tuple[int, ...], classes: int, widths: tuple[int, ...], *, padding: int, columns: int, dense: str
) -> nn.Module:
    """Five convolutions, three dense layers; with two columns, normalisation across channels after the first two."""
    ins, *sides = shape
    layers: dict[str, nn.Module] = {}
    kernels = ((11, 4, padding), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
    for number, (outs, (kernel, stride, padded)) in enumerate(zip(widths, kernels, strict=True), 1):
        groups = columns if number in (2, 4, 5) else 1  # the first and the third see all channels
        layers[f"conv{number}"] = nn.Conv2d(ins, outs, kernel, stride, padded, groups=groups)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        sides = after(sides, kernel, stride, padded)
        if columns == 2 and number < 3:
            # The paper's alpha of 1e-4 is a channel's; torch divides its own by the number of channels.
            layers[f"norm{number}"] = nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
        if number in (1, 2, 5):
            layers[f"pool{number}"] = nn.MaxPool2d(3, stride=2)
            sides = after(sides, 3, 2)
        ins = outs
    return start_convolutions(chain(layers | dense_layers(dense, ins, sides, (4096, 4096, classes))))


def dense_layers(
    dense: str, channels: int, sides: Sequence[int], widths: Sequence[int]
) -> dict[str, nn.Module]:
    """Layers 6, 7 and 8, as linear layers, or as convolutions as large as their image, which is the same."""
    linear = dense == "linear"
    ins = (channels * prod(sides) if linear else channels, *widths)
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()} if linear else {}
    for number, (into, outs) in enumerate(pairwise(ins), 6):
        kernel = (sides[0], sides[1]) if number == 6 else (1, 1)
        layers[f"fc{number}"] = nn.Linear(into, outs) if linear else nn.Conv2d(into, outs, kernel)
        if number < 5 + len(widths):
            layers |= {f"relu{number}": nn.ReLU(inplace=True), f"dropout{number}": nn.Dropout(0.5)}
    return layers if linear else layers | {"flatten": nn.Flatten()}


VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and 3x3 convolutions in front of each pooling."""


@dataclass(frozen=True, kw_only=True)
class Vgg16:
    """VGG-16 (Simonyan and Zisserman, 2015): nine tenths of its parameters are in the dense layers."""

    dense: Dense = "linear"
    """The last three layers: linear, or convolution, as TF-slim and Paleo write the same thing."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=32)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        ins, *sides = shape
        layers: dict[str, nn.Module] = {}
        for stage, (outs, count) in enumerate(VGG_STAGES, 1):
            for number in range(1, count + 1):
                layers[f"conv{stage}-{number}"] = nn.Conv2d(ins, outs, 3, padding=1)
                layers[f"relu{stage}-{number}"] = nn.ReLU(inplace=True)
                ins = outs
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
            sides = after(sides, 2, 2)
        return start_convolutions(chain(layers | dense_layers(self.dense, ins, sides, (4096, 4096, classes))))


NIN_STAGES = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1))
"""Channels, kernel, stride and padding of the convolution in front of each pooling."""


@dataclass(frozen=True, kw_only=True)
class NiN:
    """Network in network (Lin et al., 2014), the one for ImageNet; it has no dense layer."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=67)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        ins, *sides = shape
        layers: dict[str, nn.Module] = {}
        for number, (outs, kernel, stride, padding) in enumerate(NIN_STAGES, 1):
            first = nn.Conv2d(ins, outs, kernel, stride=stride, padding=padding)
            layers |= _stage(number, first, (outs, outs))
            layers[f"pool{number}"] = nn.MaxPool2d(3, stride=2)
            sides = after(after(sides, kernel, stride, padding), 3, 2)
            ins = outs
        layers["dropout"] = nn.Dropout(0.5)
        layers |= _stage(4, nn.Conv2d(ins, 1024, 3, padding=1), (1024, classes))
        layers |= {"pool4": nn.AvgPool2d((sides[0], sides[1])), "flatten": nn.Flatten()}
        return start_convolutions(chain(layers))


def _stage(number: int, first: nn.Conv2d, widths: tuple[int, int]) -> dict[str, nn.Module]:
    """A convolution and two of 1x1, which are a small network at every pixel, each with its ReLU."""
    one, two = 2 * number - 1, 2 * number
    return {
        f"conv{number}": first,
        f"relu{number}": nn.ReLU(inplace=True),
        f"cccp{one}": nn.Conv2d(first.out_channels, widths[0], 1),
        f"cccp{one}-relu": nn.ReLU(inplace=True),
        f"cccp{two}": nn.Conv2d(widths[0], widths[1], 1),
        f"cccp{two}-relu": nn.ReLU(inplace=True),
    }

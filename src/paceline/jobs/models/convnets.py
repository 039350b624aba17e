"""The older convolutional networks as tables of layers: AlexNet in its two versions, VGG-16 and network in network."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import chain, output_sides, start_convolutions
from paceline.specs.ranges import RangeChecked

Dense = Literal["linear", "convolution"]
LayerTable = Sequence[tuple[str, int, int, int, int, int] | str]
"""A convolution that a ReLU follows: name, channels, kernel, stride, padding, groups. A word is another layer."""

ALEXNET: LayerTable = (
    # Two pixels of padding make 224 pixels what the paper's sizes need: it says 224 and counts as for 227.
    *(("conv1", 96, 11, 4, 2, 1), "norm1", "pool1", ("conv2", 256, 5, 1, 2, 2), "norm2", "pool2"),
    *(("conv3", 384, 3, 1, 1, 1), ("conv4", 384, 3, 1, 1, 2), ("conv5", 256, 3, 1, 1, 2), "pool5"),
)
ALEXNET_V2: LayerTable = (
    *(("conv1", 64, 11, 4, 0, 1), "pool1", ("conv2", 192, 5, 1, 2, 1), "pool2"),
    *(("conv3", 384, 3, 1, 1, 1), ("conv4", 384, 3, 1, 1, 1), ("conv5", 256, 3, 1, 1, 1), "pool5"),
)
VGG16: LayerTable = (
    *(("conv1-1", 64, 3, 1, 1, 1), ("conv1-2", 64, 3, 1, 1, 1), "pool1"),
    *(("conv2-1", 128, 3, 1, 1, 1), ("conv2-2", 128, 3, 1, 1, 1), "pool2"),
    *(("conv3-1", 256, 3, 1, 1, 1), ("conv3-2", 256, 3, 1, 1, 1), ("conv3-3", 256, 3, 1, 1, 1), "pool3"),
    *(("conv4-1", 512, 3, 1, 1, 1), ("conv4-2", 512, 3, 1, 1, 1), ("conv4-3", 512, 3, 1, 1, 1), "pool4"),
    *(("conv5-1", 512, 3, 1, 1, 1), ("conv5-2", 512, 3, 1, 1, 1), ("conv5-3", 512, 3, 1, 1, 1), "pool5"),
)
NIN: LayerTable = (  # the 1x1 convolutions are a small network at every pixel
    *(("conv1", 96, 11, 4, 0, 1), ("cccp1", 96, 1, 1, 0, 1), ("cccp2", 96, 1, 1, 0, 1), "pool1"),
    *(("conv2", 256, 5, 1, 2, 1), ("cccp3", 256, 1, 1, 0, 1), ("cccp4", 256, 1, 1, 0, 1), "pool2"),
    *(("conv3", 384, 3, 1, 1, 1), ("cccp5", 384, 1, 1, 0, 1), ("cccp6", 384, 1, 1, 0, 1), "pool3"),
    *("dropout", ("conv4", 1024, 3, 1, 1, 1), ("cccp7", 1024, 1, 1, 0, 1)),
)


def _layers(
    shape: tuple[int, ...], table: LayerTable, pool: int = 3
) -> tuple[dict[str, nn.Module], int, list[int]]:
    """The layers of a table by name, and the channels and sides that they leave; ``pool`` is the poolings' kernel."""
    ins, *sides = shape
    layers: dict[str, nn.Module] = {}
    for row in table:
        if isinstance(row, tuple):
            name, outs, kernel, stride, padding, groups = row
            layers[name] = nn.Conv2d(ins, outs, kernel, stride, padding, groups=groups)
            relu = name.replace("conv", "relu") if "conv" in name else f"{name}-relu"
            layers[relu] = nn.ReLU(inplace=True)
            ins, sides = outs, output_sides(sides, kernel, stride, padding)
        elif row.startswith("pool"):
            layers[row] = nn.MaxPool2d(pool, stride=2)
            sides = output_sides(sides, pool, 2)
        elif row == "dropout":
            layers[row] = nn.Dropout(0.5)
        else:  # the paper's alpha of 1e-4 is a channel's; torch divides its own by the number of channels
            layers[row] = nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
    return layers, ins, sides


def dense_layers(
    dense: Dense, channels: int, sides: Sequence[int], widths: Sequence[int]
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


def _network(
    shape: tuple[int, ...], table: LayerTable, dense: Dense, classes: int, pool: int = 3
) -> nn.Module:
    layers, channels, sides = _layers(shape, table, pool)
    return start_convolutions(chain(layers | dense_layers(dense, channels, sides, (4096, 4096, classes))))


@dataclass(frozen=True, kw_only=True)
class AlexNet:
    """AlexNet (Krizhevsky et al., 2012), its two columns as grouped convolutions."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=63)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _network(shape, ALEXNET, "linear", classes)


@dataclass(frozen=True, kw_only=True)
class AlexNetV2(RangeChecked):
    """AlexNet of "one weird trick" (Krizhevsky, 2014), as TF-slim and Paleo have it."""

    dense: Dense = "convolution"
    """The last three layers: convolution, as TF-slim and Paleo write them, or linear, which is the same."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=67)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _network(shape, ALEXNET_V2, self.dense, classes)


@dataclass(frozen=True, kw_only=True)
class Vgg16(RangeChecked):
    """VGG-16 (Simonyan and Zisserman, 2015): 90 % of its parameters are in the dense layers."""

    dense: Dense = "linear"
    """The last three layers: linear, or convolution, as TF-slim and Paleo write the same thing."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=32)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _network(shape, VGG16, self.dense, classes, pool=2)


@dataclass(frozen=True, kw_only=True)
class NiN:
    """Network in network (Lin et al., 2014), the one for ImageNet; it has no dense layer."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=67)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, _, sides = _layers(shape, (*NIN, ("cccp8", classes, 1, 1, 0, 1)))
        layers |= {"pool4": nn.AvgPool2d((sides[0], sides[1])), "flatten": nn.Flatten()}
        return start_convolutions(chain(layers))

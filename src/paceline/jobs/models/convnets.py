"""The older convolutional networks: AlexNet in its two usual versions, VGG-16 and network in network."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import after, chain, check_dense, dense_layers, start_convolutions


@dataclass(frozen=True, kw_only=True)
class AlexNet:
    """AlexNet (Krizhevsky et al., 2012), its two columns as grouped convolutions."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=63)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Five convolutions, two of them with normalisation across channels, then three dense layers.

        Two pixels of padding make 224 pixels what the paper's sizes need: it says 224 and counts as for 227.
        """
        channels, *sides = shape
        layers: dict[str, nn.Module] = {
            "conv1": nn.Conv2d(channels, 96, 11, stride=4, padding=2),
            "relu1": nn.ReLU(inplace=True),
            "norm1": _across_channels(),
            "pool1": nn.MaxPool2d(3, stride=2),
            "conv2": nn.Conv2d(96, 256, 5, padding=2, groups=2),
            "relu2": nn.ReLU(inplace=True),
            "norm2": _across_channels(),
            "pool2": nn.MaxPool2d(3, stride=2),
            **_last_three((256, 384, 384, 256), groups=2),
        }
        sides = _pooled(after(sides, 11, 4, padding=2))
        model = chain(layers | dense_layers("linear", 256, sides, (4096, 4096, classes)))
        start_convolutions(model)
        return model


@dataclass(frozen=True, kw_only=True)
class AlexNetV2:
    """AlexNet of "one weird trick" (Krizhevsky, 2014), as TF-slim and Paleo have it."""

    dense: str = "convolution"
    """The last three layers: convolution, as TF-slim and Paleo write them, or linear, which is the same."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=67)

    def __post_init__(self) -> None:
        check_dense(self.dense)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, *sides = shape
        layers: dict[str, nn.Module] = {
            "conv1": nn.Conv2d(channels, 64, 11, stride=4),
            "relu1": nn.ReLU(inplace=True),
            "pool1": nn.MaxPool2d(3, stride=2),
            "conv2": nn.Conv2d(64, 192, 5, padding=2),
            "relu2": nn.ReLU(inplace=True),
            "pool2": nn.MaxPool2d(3, stride=2),
            **_last_three((192, 384, 384, 256), groups=1),
        }
        sides = _pooled(after(sides, 11, 4))
        model = chain(layers | dense_layers(self.dense, 256, sides, (4096, 4096, classes)))
        start_convolutions(model)
        return model


def _last_three(channels: tuple[int, int, int, int], groups: int) -> dict[str, nn.Module]:
    """Three 3x3 convolutions, of which only the first sees all channels, and pooling."""
    return {
        "conv3": nn.Conv2d(channels[0], channels[1], 3, padding=1),
        "relu3": nn.ReLU(inplace=True),
        "conv4": nn.Conv2d(channels[1], channels[2], 3, padding=1, groups=groups),
        "relu4": nn.ReLU(inplace=True),
        "conv5": nn.Conv2d(channels[2], channels[3], 3, padding=1, groups=groups),
        "relu5": nn.ReLU(inplace=True),
        "pool5": nn.MaxPool2d(3, stride=2),
    }


def _pooled(sides: list[int]) -> list[int]:
    """After the three poolings; the convolutions between them keep the size."""
    for _ in range(3):
        sides = after(sides, 3, 2)
    return sides


def _across_channels() -> nn.LocalResponseNorm:
    # The paper's alpha of 1e-4 is a channel's; torch divides its own by the number of channels.
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)


VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and 3x3 convolutions in front of each pooling."""


@dataclass(frozen=True, kw_only=True)
class Vgg16:
    """VGG-16 (Simonyan and Zisserman, 2015): nine tenths of its parameters are in the dense layers."""

    dense: str = "linear"
    """The last three layers: linear, or convolution, as TF-slim and Paleo write the same thing."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=32)

    def __post_init__(self) -> None:
        check_dense(self.dense)

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
        model = chain(layers | dense_layers(self.dense, ins, sides, (4096, 4096, classes)))
        start_convolutions(model)
        return model


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
        model = chain(layers | {"pool4": nn.AvgPool2d((sides[0], sides[1])), "flatten": nn.Flatten()})
        start_convolutions(model)
        return model


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

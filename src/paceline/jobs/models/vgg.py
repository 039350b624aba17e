from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.looks import ImageLook
from paceline.jobs.models.base import start_convolutions
from paceline.jobs.models.layers import after, chain, check_dense, dense_layers

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and 3x3 convolutions in front of each pooling."""


@dataclass(frozen=True, kw_only=True)
class Vgg16:
    """VGG-16 (Simonyan and Zisserman, 2015): nine tenths of its parameters are in the dense layers."""

    dense: str = "linear"
    """The last three layers: linear, or convolution, as TF-slim and Paleo write the same thing."""

    usual: ClassVar[ImageLook] = ImageLook(shape=(3, 224, 224), classes=1000, smallest=32)

    def __post_init__(self) -> None:
        check_dense(self.dense)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Five times convolve and halve, then three dense layers with dropout between them."""
        ins, *sides = shape
        layers: dict[str, nn.Module] = {}
        for stage, (outs, count) in enumerate(STAGES, 1):
            for number in range(1, count + 1):
                layers[f"conv{stage}-{number}"] = nn.Conv2d(ins, outs, 3, padding=1)
                layers[f"relu{stage}-{number}"] = nn.ReLU(inplace=True)
                ins = outs
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
            sides = after(sides, 2, 2)
        model = chain(layers | dense_layers(self.dense, ins, sides, (4096, 4096, classes)))
        start_convolutions(model)
        return model

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.looks import ImageLook
from paceline.jobs.models.base import start_convolutions
from paceline.jobs.models.layers import after, chain

STAGES = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1))
"""Channels, kernel, stride and padding of the convolution in front of each pooling."""


@dataclass(frozen=True, kw_only=True)
class NiN:
    """Network in network (Lin et al., 2014), the one for ImageNet; it has no dense layer."""

    usual: ClassVar[ImageLook] = ImageLook(shape=(3, 224, 224), classes=1000, smallest=67)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Four times a convolution and two of 1x1; the mean of the last one's channels is the score."""
        ins, *sides = shape
        layers: dict[str, nn.Module] = {}
        for number, (outs, kernel, stride, padding) in enumerate(STAGES, 1):
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

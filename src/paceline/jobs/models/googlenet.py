"""GoogLeNet (Szegedy et al., 2015), without the auxiliary heads."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.looks import ImageLook
from paceline.jobs.models.base import start_convolutions
from paceline.jobs.models.layers import Branches, chain

MIXED = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
"""Channels as in the paper's table 1: in; 1x1; 3x3's reduction and itself; 5x5's the same; after pooling."""


@dataclass(frozen=True, kw_only=True)
class GoogLeNet:
    """GoogLeNet (Szegedy et al., 2015) without the auxiliary heads."""

    version: str = "batch-norm"
    """batch-norm, as torchvision has it, with 3x3 for 5x5; or paper: biases and 5x5, 7.00 M parameters."""

    usual: ClassVar[ImageLook] = ImageLook(shape=(3, 224, 224), classes=1000, smallest=32)

    def __post_init__(self) -> None:
        if self.version not in ("batch-norm", "paper"):
            raise ValueError(f"version={self.version} is unknown; choose batch-norm or paper")

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The stem, nine mixed blocks with two poolings between them, the mean of each channel, a dense layer."""
        parts = _PaperParts() if self.version == "paper" else _Parts()
        layers = parts.stem(shape[0])
        for name, widths in MIXED.items():
            layers[f"mixed{name}"] = _mixed(parts, *widths)
            if name in ("3b", "4e"):
                layers[f"pool{name[0]}"] = parts.pool(name)
        layers |= {"pool5": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        model = chain(layers | {"dropout": nn.Dropout(parts.dropout), "logits": nn.Linear(1024, classes)})
        start_convolutions(model)
        return model


class _Parts:
    """The parts with batch norm."""

    middle: ClassVar[int] = 3
    """Kernel of the branch that the paper calls 5x5."""
    dropout: ClassVar[float] = 0.2

    def conv(self, ins: int, outs: int, kernel: int, stride: int = 1) -> nn.Module:
        """A convolution that keeps the size, or halves it, with what follows it."""
        bare = nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2, bias=False)
        return chain({"conv": bare, "norm": nn.BatchNorm2d(outs, eps=0.001), "relu": nn.ReLU(inplace=True)})

    def stem(self, channels: int) -> dict[str, nn.Module]:
        """All in front of the mixed blocks."""
        return {
            "conv1": self.conv(channels, 64, 7, 2),
            "pool1": _halve(3),
            "conv2a": self.conv(64, 64, 1),
            "conv2b": self.conv(64, 192, 3),
            "pool2": _halve(3),
        }

    def pool(self, block: str) -> nn.Module:
        """What follows this block."""
        return _halve(2 if block == "4e" else 3)


class _PaperParts(_Parts):
    """The parts as in the paper: biases, and normalisation across channels around the second convolution."""

    middle = 5
    dropout = 0.4

    def conv(self, ins: int, outs: int, kernel: int, stride: int = 1) -> nn.Module:
        bare = nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2)
        return chain({"conv": bare, "relu": nn.ReLU(inplace=True)})

    def stem(self, channels: int) -> dict[str, nn.Module]:
        first, pool, *between, last = super().stem(channels).items()
        norms = [("norm1", nn.LocalResponseNorm(5)), ("norm2", nn.LocalResponseNorm(5))]
        return dict([first, pool, norms[0], *between, norms[1], last])

    def pool(self, block: str) -> nn.Module:  # noqa: ARG002
        return _halve(3)


def _halve(kernel: int) -> nn.Module:
    return nn.MaxPool2d(kernel, stride=2, ceil_mode=True)


def _mixed(
    parts: _Parts, ins: int, single: int, three_in: int, three: int, five_in: int, five: int, pooled: int
) -> nn.Module:
    pool = nn.MaxPool2d(3, stride=1, padding=1)
    return Branches(
        {
            "single": parts.conv(ins, single, 1),
            "three": chain({"0": parts.conv(ins, three_in, 1), "1": parts.conv(three_in, three, 3)}),
            "five": chain({"0": parts.conv(ins, five_in, 1), "1": parts.conv(five_in, five, parts.middle)}),
            "pooled": chain({"pool": pool, "conv": parts.conv(ins, pooled, 1)}),
        }
    )

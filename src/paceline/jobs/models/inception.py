"""Inception v3 (Szegedy et al., 2016), without the auxiliary head."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.looks import ImageLook
from paceline.jobs.models.base import start_convolutions
from paceline.jobs.models.layers import Branches, after, chain


@dataclass(frozen=True, kw_only=True)
class InceptionV3:
    """Inception v3 (Szegedy et al., 2016) without the auxiliary head."""

    version: str = "published"
    """published, or paleo: biases instead of batch norm, one convolution less, 23.73 M parameters."""

    usual: ClassVar[ImageLook] = ImageLook(shape=(3, 299, 299), classes=1000, smallest=75)

    def __post_init__(self) -> None:
        if self.version not in ("published", "paleo"):
            raise ValueError(f"version={self.version} is unknown; choose published or paleo")

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The stem, eleven mixed blocks, the mean of each channel, a dense layer."""
        channels, *sides = shape
        parts = _PaleoParts() if self.version == "paleo" else _Parts()
        layers = _stem(parts, channels) | _mixed(parts)
        for kernel, stride in ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2), (3, 2)):
            sides = after(sides, kernel, stride)
        layers |= {"pool": nn.AvgPool2d((sides[0], sides[1])), "dropout": nn.Dropout(0.5)}
        model = chain(layers | parts.last(2048, classes))
        start_convolutions(model)
        return model


Kernel = int | tuple[int, int]


class _Parts:
    """The parts as published."""

    norm: ClassVar[bool] = True
    """Whether a batch norm follows each convolution, which then needs no bias."""

    def conv(self, ins: int, outs: int, kernel: Kernel, stride: int = 1, *, pad: bool = True) -> nn.Module:
        """A convolution with what follows it; with padding it keeps the size."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if pad else 0
        bare = nn.Conv2d(ins, outs, (high, wide), stride=stride, padding=padding, bias=not self.norm)
        norm = {"norm": nn.BatchNorm2d(outs, eps=0.001)} if self.norm else {}
        return chain({"conv": bare, **norm, "relu": nn.ReLU(inplace=True)})

    def halving(self, ins: int, outs: int) -> nn.Module:
        """A 3x3 convolution with stride 2."""
        return self.conv(ins, outs, 3, 2, pad=False)

    def first_reduction(self) -> nn.Module:
        """The longer branch of the first block that halves the image."""
        return chain({"0": self.conv(288, 64, 1), "1": self.conv(64, 96, 3), "2": self.halving(96, 96)})

    def last(self, ins: int, classes: int) -> dict[str, nn.Module]:
        """From the means to the scores."""
        return {"flatten": nn.Flatten(), "logits": nn.Linear(ins, classes)}


class _PaleoParts(_Parts):
    """The parts as in Paleo's description of the network, by which its figures were computed."""

    norm = False

    def first_reduction(self) -> nn.Module:
        return chain({"0": self.conv(288, 64, 1), "1": self.halving(64, 96)})

    def last(self, ins: int, classes: int) -> dict[str, nn.Module]:
        return {"logits": nn.Conv2d(ins, classes, 1), "flatten": nn.Flatten()}


def _stem(parts: _Parts, channels: int) -> dict[str, nn.Module]:
    return {
        "conv1a": parts.conv(channels, 32, 3, 2, pad=False),
        "conv2a": parts.conv(32, 32, 3, pad=False),
        "conv2b": parts.conv(32, 64, 3),
        "pool3a": nn.MaxPool2d(3, stride=2),
        "conv3b": parts.conv(64, 80, 1),
        "conv4a": parts.conv(80, 192, 3, pad=False),
        "pool5a": nn.MaxPool2d(3, stride=2),
    }


def _mixed(parts: _Parts) -> dict[str, nn.Module]:
    return {
        "mixed5b": _square(parts, 192, 32),
        "mixed5c": _square(parts, 256, 64),
        "mixed5d": _square(parts, 288, 64),
        "mixed6a": Branches(
            {"conv": parts.halving(288, 384), "twice": parts.first_reduction(), "pool": nn.MaxPool2d(3, 2)}
        ),
        "mixed6b": _factorised(parts, 128),
        "mixed6c": _factorised(parts, 160),
        "mixed6d": _factorised(parts, 160),
        "mixed6e": _factorised(parts, 192),
        "mixed7a": _second_reduction(parts),
        "mixed7b": _wide(parts, 1280),
        "mixed7c": _wide(parts, 2048),
    }


def _pooling(parts: _Parts, ins: int, outs: int) -> nn.Module:
    return chain({"pool": nn.AvgPool2d(3, stride=1, padding=1), "conv": parts.conv(ins, outs, 1)})


def _square(parts: _Parts, ins: int, pooled: int) -> nn.Module:
    """1x1, 5x5 and twice 3x3."""
    return Branches(
        {
            "single": parts.conv(ins, 64, 1),
            "five": chain({"0": parts.conv(ins, 48, 1), "1": parts.conv(48, 64, 5)}),
            "twice": chain(
                {"0": parts.conv(ins, 64, 1), "1": parts.conv(64, 96, 3), "2": parts.conv(96, 96, 3)}
            ),
            "pooled": _pooling(parts, ins, pooled),
        }
    )


def _factorised(parts: _Parts, width: int) -> nn.Module:
    """7x7 as 1x7 and 7x1, once and twice."""
    once = {
        "0": parts.conv(768, width, 1),
        "1": parts.conv(width, width, (1, 7)),
        "2": parts.conv(width, 192, (7, 1)),
    }
    twice = {
        "0": parts.conv(768, width, 1),
        "1": parts.conv(width, width, (7, 1)),
        "2": parts.conv(width, width, (1, 7)),
        "3": parts.conv(width, width, (7, 1)),
        "4": parts.conv(width, 192, (1, 7)),
    }
    ways = {"single": parts.conv(768, 192, 1), "seven": chain(once), "twice": chain(twice)}
    return Branches(ways | {"pooled": _pooling(parts, 768, 192)})


def _second_reduction(parts: _Parts) -> nn.Module:
    seven = {
        "0": parts.conv(768, 192, 1),
        "1": parts.conv(192, 192, (1, 7)),
        "2": parts.conv(192, 192, (7, 1)),
        "3": parts.halving(192, 192),
    }
    three = chain({"0": parts.conv(768, 192, 1), "1": parts.halving(192, 320)})
    return Branches({"three": three, "seven": chain(seven), "pool": nn.MaxPool2d(3, 2)})


def _wide(parts: _Parts, ins: int) -> nn.Module:
    """3x3 as 1x3 beside 3x1, alone and after a 3x3."""
    three = chain({"0": parts.conv(ins, 384, 1), "1": _beside(parts)})
    double = chain({"0": parts.conv(ins, 448, 1), "1": parts.conv(448, 384, 3), "2": _beside(parts)})
    ways = {"single": parts.conv(ins, 320, 1), "three": three, "twice": double}
    return Branches(ways | {"pooled": _pooling(parts, ins, 192)})


def _beside(parts: _Parts) -> nn.Module:
    return Branches({"flat": parts.conv(384, 384, (1, 3)), "high": parts.conv(384, 384, (3, 1))})

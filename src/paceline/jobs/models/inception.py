"""GoogLeNet (Szegedy et al., 2015) and Inception v3 (Szegedy et al., 2016), without their auxiliary heads."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import Branches, after, chain, start_convolutions

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

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=32)

    def __post_init__(self) -> None:
        if self.version not in ("batch-norm", "paper"):
            raise ValueError(f"version={self.version} is unknown; choose batch-norm or paper")

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        parts = _PaperParts() if self.version == "paper" else _GoogLeNetParts()
        layers = parts.stem(shape[0])
        for name, widths in MIXED.items():
            layers[f"mixed{name}"] = _mixed_block(parts, *widths)
            if name in ("3b", "4e"):
                layers[f"pool{name[0]}"] = parts.pool(name)
        layers |= {"pool5": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        model = chain(layers | {"dropout": nn.Dropout(parts.dropout), "logits": nn.Linear(1024, classes)})
        start_convolutions(model)
        return model


class _GoogLeNetParts:
    """The parts with batch norm."""

    middle: ClassVar[int] = 3
    """Kernel of the branch that the paper calls 5x5."""
    dropout: ClassVar[float] = 0.2

    def conv(self, ins: int, outs: int, kernel: int, stride: int = 1) -> nn.Module:
        """A convolution that keeps the size, or halves it, with what follows it."""
        bare = nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2, bias=False)
        return chain({"conv": bare, "norm": nn.BatchNorm2d(outs, eps=0.001), "relu": nn.ReLU(inplace=True)})

    def stem(self, channels: int) -> dict[str, nn.Module]:
        return {
            "conv1": self.conv(channels, 64, 7, 2),
            "pool1": _halve(3),
            "conv2a": self.conv(64, 64, 1),
            "conv2b": self.conv(64, 192, 3),
            "pool2": _halve(3),
        }

    def pool(self, block: str) -> nn.Module:
        return _halve(2 if block == "4e" else 3)


class _PaperParts(_GoogLeNetParts):
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


def _mixed_block(
    parts: _GoogLeNetParts,
    ins: int,
    single: int,
    three_in: int,
    three: int,
    five_in: int,
    five: int,
    pooled: int,
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


@dataclass(frozen=True, kw_only=True)
class InceptionV3:
    """Inception v3 (Szegedy et al., 2016) without the auxiliary head."""

    version: str = "published"
    """published, or paleo: biases instead of batch norm, one convolution less, 23.73 M parameters."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 299, 299), classes=1000, smallest=75)

    def __post_init__(self) -> None:
        if self.version not in ("published", "paleo"):
            raise ValueError(f"version={self.version} is unknown; choose published or paleo")

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, *sides = shape
        parts = _PaleoParts() if self.version == "paleo" else _InceptionParts()
        layers = _stem(parts, channels) | _mixed(parts)
        for kernel, stride in ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2), (3, 2)):
            sides = after(sides, kernel, stride)
        layers |= {"pool": nn.AvgPool2d((sides[0], sides[1])), "dropout": nn.Dropout(0.5)}
        model = chain(layers | parts.last(2048, classes))
        start_convolutions(model)
        return model


Kernel = int | tuple[int, int]


class _InceptionParts:
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
        return self.conv(ins, outs, 3, 2, pad=False)

    def first_reduction(self) -> nn.Module:
        """The longer branch of the first block that halves the image."""
        return chain({"0": self.conv(288, 64, 1), "1": self.conv(64, 96, 3), "2": self.halving(96, 96)})

    def last(self, ins: int, classes: int) -> dict[str, nn.Module]:
        return {"flatten": nn.Flatten(), "logits": nn.Linear(ins, classes)}


class _PaleoParts(_InceptionParts):
    """The parts as in Paleo's description of the network, by which its figures were computed."""

    norm = False

    def first_reduction(self) -> nn.Module:
        return chain({"0": self.conv(288, 64, 1), "1": self.halving(64, 96)})

    def last(self, ins: int, classes: int) -> dict[str, nn.Module]:
        return {"logits": nn.Conv2d(ins, classes, 1), "flatten": nn.Flatten()}


def _stem(parts: _InceptionParts, channels: int) -> dict[str, nn.Module]:
    return {
        "conv1a": parts.conv(channels, 32, 3, 2, pad=False),
        "conv2a": parts.conv(32, 32, 3, pad=False),
        "conv2b": parts.conv(32, 64, 3),
        "pool3a": nn.MaxPool2d(3, stride=2),
        "conv3b": parts.conv(64, 80, 1),
        "conv4a": parts.conv(80, 192, 3, pad=False),
        "pool5a": nn.MaxPool2d(3, stride=2),
    }


def _mixed(parts: _InceptionParts) -> dict[str, nn.Module]:
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


def _pooling(parts: _InceptionParts, ins: int, outs: int) -> nn.Module:
    return chain({"pool": nn.AvgPool2d(3, stride=1, padding=1), "conv": parts.conv(ins, outs, 1)})


def _square(parts: _InceptionParts, ins: int, pooled: int) -> nn.Module:
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


def _factorised(parts: _InceptionParts, width: int) -> nn.Module:
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


def _second_reduction(parts: _InceptionParts) -> nn.Module:
    seven = {
        "0": parts.conv(768, 192, 1),
        "1": parts.conv(192, 192, (1, 7)),
        "2": parts.conv(192, 192, (7, 1)),
        "3": parts.halving(192, 192),
    }
    three = chain({"0": parts.conv(768, 192, 1), "1": parts.halving(192, 320)})
    return Branches({"three": three, "seven": chain(seven), "pool": nn.MaxPool2d(3, 2)})


def _wide(parts: _InceptionParts, ins: int) -> nn.Module:
    """3x3 as 1x3 beside 3x1, alone and after a 3x3."""
    three = chain({"0": parts.conv(ins, 384, 1), "1": _beside(parts)})
    double = chain({"0": parts.conv(ins, 448, 1), "1": parts.conv(448, 384, 3), "2": _beside(parts)})
    ways = {"single": parts.conv(ins, 320, 1), "three": three, "twice": double}
    return Branches(ways | {"pooled": _pooling(parts, ins, 192)})


def _beside(parts: _InceptionParts) -> nn.Module:
    return Branches({"flat": parts.conv(384, 384, (1, 3)), "high": parts.conv(384, 384, (3, 1))})

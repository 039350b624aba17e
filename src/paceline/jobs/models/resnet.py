"""Residual networks (He et al., 2016) with the stem for small images and the one for large."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import start_convolutions
from paceline.specs.ranges import RangeChecked

LARGE = 128
"""Pixels of the shorter side from which stem=auto is the large one."""


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    widening: ClassVar[int] = 1
    """Output channels, in units of its width."""

    def __init__(self, ins: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outs = width * self.widening
        self.last_norm = nn.BatchNorm2d(outs)
        self.residual = nn.Sequential(*self._residual(ins, width, stride), self.last_norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or ins != outs:
            self.shortcut = nn.Sequential(
                _convolution(ins, outs, kernel=1, stride=stride), nn.BatchNorm2d(outs)
            )
        self.activation = nn.ReLU(inplace=True)

    def _residual(self, ins: int, width: int, stride: int) -> list[nn.Module]:
        return [*_normed(ins, width, 3, stride), _convolution(width, width)]

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.activation(self.residual(images) + self.shortcut(images))
        return result


class Bottleneck(Block):
    """A 1x1 convolution to fewer channels, a 3x3 one, and a 1x1 one to four times as many."""

    widening = 4

    def _residual(self, ins: int, width: int, stride: int) -> list[nn.Module]:
        last = _convolution(width, 4 * width, kernel=1)
        return [*_normed(ins, width, 1), *_normed(width, width, 3, stride), last]


def _normed(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [_convolution(ins, outs, kernel, stride), nn.BatchNorm2d(outs), nn.ReLU(inplace=True)]


def _convolution(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2, bias=False)


@dataclass(frozen=True, kw_only=True)
class _ResNet(RangeChecked):
    """What both have."""

    zero_gamma: bool = False
    """Gamma 0 in each block's last batch norm, so that it starts as the identity; helps large batches."""
    stem: Literal["auto", "small", "large"] = "auto"
    """How it starts: small (3x3), large (7x7 with stride 2, then pooling), or auto: large from 128 pixels."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000)
    block: ClassVar[type[Block]]
    counts: ClassVar[tuple[int, ...]]
    """Blocks of each stage."""

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, *sides = shape
        if self.stem == "small" or (self.stem == "auto" and min(sides) < LARGE):
            side, stem = min(sides), _normed(channels, 64)
        else:
            side = -(-min(sides) // 4)
            stem = [*_normed(channels, 64, 7, 2), nn.MaxPool2d(3, stride=2, padding=1)]
        blocks = list(self._blocks(side))
        last = nn.Linear(512 * self.block.widening, classes)
        model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
        for block in blocks if self.zero_gamma else ():
            nn.init.zeros_(block.last_norm.weight)
        return start_convolutions(model)

    def _blocks(self, side: int) -> Iterator[Block]:
        """A stage halves the image only while two pixels a side are left: batch norm needs something to average."""
        ins = 64
        for width, count in zip((64, 128, 256, 512), self.counts, strict=True):
            stride = 2 if width > 64 and side >= 4 else 1
            side = -(-side // stride)
            for index in range(count):
                yield self.block(ins, width, stride if index == 0 else 1)
                ins = width * self.block.widening


@dataclass(frozen=True, kw_only=True)
class ResNet18(_ResNet):
    """ResNet-18 (He et al., 2016), for small images and large ones."""

    block: ClassVar[type[Block]] = Block
    counts: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)


@dataclass(frozen=True, kw_only=True)
class ResNet50(_ResNet):
    """ResNet-50 (He et al., 2016) with the stride in the 3x3 convolution (v1.5)."""

    block: ClassVar[type[Block]] = Bottleneck
    counts: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)

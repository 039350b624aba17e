"""Residual networks (He et al., 2016) with the stem for small images and the one for large."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import start_convolutions

LARGE = 128
"""Pixels of the shorter side from which a stem that is chosen by itself is the large one."""


@dataclass(frozen=True, kw_only=True)
class _ResNet:
    """What both have."""

    zero_gamma: bool = False
    """Gamma 0 in each block's last batch norm, so that it starts as the identity; helps large batches."""

    stem: str = "auto"
    """How it starts: small (3x3), large (7x7 with stride 2, then pooling), or auto: large from 128 pixels."""

    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000)

    def __post_init__(self) -> None:
        _check_stem(self.stem)


@dataclass(frozen=True, kw_only=True)
class ResNet18(_ResNet):
    """ResNet-18 (He et al., 2016), for small images and large ones."""

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        first, side = _stem(self.stem, shape)
        stages = _stages(Block, (2, 2, 2, 2), side)
        return _finished([*first, *stages], 512, classes, zero_gamma=self.zero_gamma)


@dataclass(frozen=True, kw_only=True)
class ResNet50(_ResNet):
    """ResNet-50 (He et al., 2016) with the stride in the 3x3 convolution (v1.5)."""

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        first, side = _stem(self.stem, shape)
        stages = _stages(Bottleneck, (3, 4, 6, 3), side)
        return _finished([*first, *stages], 2048, classes, zero_gamma=self.zero_gamma)


def _check_stem(stem: str) -> None:
    if stem not in ("auto", "small", "large"):
        raise ValueError(f"stem={stem} is unknown; choose auto, small or large")


def _stem(stem: str, shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """The first layers, and the shorter side of what they give."""
    channels, *sides = shape
    side = min(sides)
    if stem == "small" or (stem == "auto" and side < LARGE):
        return [_convolution(channels, 64), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], side
    first = _convolution(channels, 64, kernel=7, stride=2)
    layers = [first, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    return layers, -(-side // 4)


def _stages(block: type["Block"], counts: tuple[int, ...], side: int) -> Iterator[nn.Module]:
    """All blocks, given the shorter side of their input.

    A stage halves the image only while two pixels a side are left, so that batch norm has something to
    average even on a batch of one tiny image.
    """
    ins = 64
    for width, count in zip((64, 128, 256, 512), counts, strict=True):
        stride = 2 if width > 64 and side >= 4 else 1
        side = -(-side // stride)
        for index in range(count):
            yield block(ins, width, stride if index == 0 else 1)
            ins = width * block.widening


def _finished(layers: list[nn.Module], features: int, classes: int, *, zero_gamma: bool) -> nn.Module:
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))
    start_convolutions(model)
    for module in model.modules():
        if isinstance(module, Block) and zero_gamma:
            nn.init.zeros_(module.last_norm.weight)
    return model


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
        """All but the last batch norm."""
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


def _normed(ins: int, outs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [_convolution(ins, outs, kernel, stride), nn.BatchNorm2d(outs), nn.ReLU(inplace=True)]


def _convolution(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2, bias=False)

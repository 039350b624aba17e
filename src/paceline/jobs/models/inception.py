"""GoogLeNet (Szegedy et al., 2015) and Inception v3 (Szegedy et al., 2016), without their auxiliary heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import nn

from paceline.jobs.inputs import ImageInput
from paceline.jobs.models.layers import Branches, chain, output_sides, start_convolutions
from paceline.specs.ranges import RangeChecked

Conv = Callable[..., nn.Module]
"""``_conv`` with or without batch norm."""
ConvPath = Sequence[tuple[int, ...]]
"""Convolutions one after another: the channels and the kernel of each."""


def _conv(
    ins: int, outs: int, high: int, wide: int = 0, *, stride: int = 1, pad: bool = True, norm: bool
) -> nn.Module:
    """A convolution with what follows it; with padding it keeps the size. A batch norm replaces the bias."""
    wide = wide or high
    padding = (high // 2, wide // 2) if pad else 0
    bare = nn.Conv2d(ins, outs, (high, wide), stride=stride, padding=padding, bias=not norm)
    norms = {"norm": nn.BatchNorm2d(outs, eps=0.001)} if norm else {}
    return chain({"conv": bare, **norms, "relu": nn.ReLU(inplace=True)})


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
class GoogLeNet(RangeChecked):
    """GoogLeNet (Szegedy et al., 2015) without the auxiliary heads."""

    version: Literal["batch-norm", "paper"] = "batch-norm"
    """batch-norm, as torchvision has it, with 3x3 for 5x5; or paper: biases and 5x5, 7.00 M parameters."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 224, 224), classes=1000, smallest=32)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        paper = self.version == "paper"
        conv = partial(_conv, norm=not paper)
        halve = partial(nn.MaxPool2d, stride=2, ceil_mode=True)
        layers: dict[str, nn.Module] = {"conv1": conv(shape[0], 64, 7, stride=2), "pool1": halve(3)}
        layers |= {"norm1": nn.LocalResponseNorm(5)} if paper else {}
        layers |= {"conv2a": conv(64, 64, 1), "conv2b": conv(64, 192, 3)}
        layers |= {"norm2": nn.LocalResponseNorm(5)} if paper else {}
        layers["pool2"] = halve(3)
        for name, (ins, single, three_in, three, five_in, five, pooled) in MIXED.items():
            layers[f"mixed{name}"] = _mixed(
                conv,
                ins,
                {"pool": nn.MaxPool2d(3, stride=1, padding=1), "conv": conv(ins, pooled, 1)},
                single=[(single, 1)],
                three=[(three_in, 1), (three, 3)],
                five=[(five_in, 1), (five, 5 if paper else 3)],
            )
            if name in ("3b", "4e"):
                layers[f"pool{name[0]}"] = halve(3 if paper or name == "3b" else 2)
        layers |= {"pool5": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        layers |= {"dropout": nn.Dropout(0.4 if paper else 0.2), "logits": nn.Linear(1024, classes)}
        return start_convolutions(chain(layers))


@dataclass(frozen=True, kw_only=True)
class InceptionV3(RangeChecked):
    """Inception v3 (Szegedy et al., 2016) without the auxiliary head."""

    version: Literal["published", "paleo"] = "published"
    """published, or paleo: biases instead of batch norm, one convolution less, 23.73 M parameters."""
    default_input: ClassVar[ImageInput] = ImageInput(shape=(3, 299, 299), classes=1000, smallest=75)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, *sides = shape
        paleo = self.version == "paleo"
        conv = partial(_conv, norm=not paleo)
        for kernel, stride in ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2), (3, 2)):
            sides = output_sides(sides, kernel, stride)
        twice = [(64, 1), (96, 3)] if paleo else [(64, 1), (96, 3), (96, 3)]
        seven = [(192, 1), (192, 1, 7), (192, 7, 1), (192, 3)]
        layers: dict[str, nn.Module] = {
            "conv1a": conv(channels, 32, 3, stride=2, pad=False),
            "conv2a": conv(32, 32, 3, pad=False),
            "conv2b": conv(32, 64, 3),
            "pool3a": nn.MaxPool2d(3, stride=2),
            "conv3b": conv(64, 80, 1),
            "conv4a": conv(80, 192, 3, pad=False),
            "pool5a": nn.MaxPool2d(3, stride=2),
            "mixed5b": _square(conv, 192, 32),
            "mixed5c": _square(conv, 256, 64),
            "mixed5d": _square(conv, 288, 64),
            "mixed6a": _halving(conv, 288, conv=[(384, 3)], twice=twice),
            "mixed6b": _factorised(conv, 128),
            "mixed6c": _factorised(conv, 160),
            "mixed6d": _factorised(conv, 160),
            "mixed6e": _factorised(conv, 192),
            "mixed7a": _halving(conv, 768, three=[(192, 1), (320, 3)], seven=seven),
            "mixed7b": _wide(conv, 1280),
            "mixed7c": _wide(conv, 2048),
            "pool": nn.AvgPool2d((sides[0], sides[1])),
            "dropout": nn.Dropout(0.5),
        }
        if paleo:
            layers |= {"logits": nn.Conv2d(2048, classes, 1), "flatten": nn.Flatten()}
        else:
            layers |= {"flatten": nn.Flatten(), "logits": nn.Linear(2048, classes)}
        return start_convolutions(chain(layers))


def _averaged(conv: Conv, ins: int, outs: int) -> dict[str, nn.Module]:
    return {"pool": nn.AvgPool2d(3, stride=1, padding=1), "conv": conv(ins, outs, 1)}


def _square(conv: Conv, ins: int, pooled: int) -> nn.Module:
    """1x1, 5x5 and twice 3x3."""
    five, twice = [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]
    return _mixed(conv, ins, _averaged(conv, ins, pooled), single=[(64, 1)], five=five, twice=twice)


def _factorised(conv: Conv, width: int) -> nn.Module:
    """7x7 as 1x7 and 7x1, once and twice."""
    seven = [(width, 1), (width, 1, 7), (192, 7, 1)]
    twice = [(width, 1), (width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7)]
    return _mixed(conv, 768, _averaged(conv, 768, 192), single=[(192, 1)], seven=seven, twice=twice)


def _wide(conv: Conv, ins: int) -> nn.Module:
    """3x3 as 1x3 beside 3x1, alone and after a 3x3."""
    three, twice = (
        nn.Sequential(*before, Branches({"flat": conv(384, 384, 1, 3), "high": conv(384, 384, 3, 1)}))
        for before in ([conv(ins, 384, 1)], [conv(ins, 448, 1), conv(448, 384, 3)])
    )
    pooled = chain(_averaged(conv, ins, 192))
    return Branches({"single": conv(ins, 320, 1), "three": three, "twice": twice, "pooled": pooled})


def _halving(conv: Conv, ins: int, /, **paths: ConvPath) -> nn.Module:
    halve = partial(conv, stride=2, pad=False)
    branches = {name: _path(conv, ins, path, last=halve) for name, path in paths.items()}
    return Branches({**branches, "pool": nn.MaxPool2d(3, stride=2)})


def _mixed(conv: Conv, ins: int, pooled: Mapping[str, nn.Module], /, **paths: ConvPath) -> nn.Module:
    branches = {name: _path(conv, ins, path, last=conv) for name, path in paths.items()}
    return Branches({**branches, "pooled": chain(pooled)})


def _path(conv: Conv, ins: int, path: ConvPath, last: Conv) -> nn.Module:
    layers = []
    for place, (outs, *kernel) in enumerate(path, 1):
        layers.append((last if place == len(path) else conv)(ins, outs, *kernel))
        ins = outs
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)

"""The dense layers at the end of the older networks, as linear layers or as the convolutions they equal."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn


def check_dense(dense: str) -> None:
    """It is one of the two ways to write it."""
    if dense not in ("linear", "convolution"):
        raise ValueError(f"dense={dense} is unknown; choose linear or convolution")


def dense_layers(dense: str, channels: int, sides: Sequence[int], widths: Sequence[int]) -> list[nn.Module]:
    """From an image of these channels and sides to the last of the widths, with ReLU and dropout between."""
    layers = _linear(channels, sides, widths) if dense == "linear" else _convolutions(channels, sides, widths)
    between = [[nn.ReLU(inplace=True), nn.Dropout(0.5)] for _ in layers[1:]]
    mixed = [
        module for layer, after in zip(layers, [*between, []], strict=True) for module in (layer, *after)
    ]
    return [nn.Flatten(), *mixed] if dense == "linear" else [*mixed, nn.Flatten()]


def _linear(channels: int, sides: Sequence[int], widths: Sequence[int]) -> list[nn.Module]:
    return [nn.Linear(ins, outs) for ins, outs in pairwise((channels * prod(sides), *widths))]


def _convolutions(channels: int, sides: Sequence[int], widths: Sequence[int]) -> list[nn.Module]:
    first: nn.Module = nn.Conv2d(channels, widths[0], (sides[0], sides[1]))
    return [first, *(nn.Conv2d(ins, outs, 1) for ins, outs in pairwise(widths))]

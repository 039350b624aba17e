"""What a shipped model is, and what several of them are made of."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.jobs.inputs import InputSpec


class Architecture(Protocol):
    """A model. A frozen, keyword-only dataclass; its fields are its settings."""

    @property
    def default_input(self) -> InputSpec:
        """What it is fed by default, and what it can be fed."""

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new model, from inputs of this shape to a score a class; its weights are drawn at random."""


def start_convolutions(model: nn.Module) -> None:
    """Draw the weights of all convolutions as He et al. (2015) do for ReLU."""
    for module in model.modules():
        # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def chain(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


class Branches(nn.Module):
    """Several ways for the same image, their channels put side by side."""

    def __init__(self, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.children()], dim=1)


def after(sides: Sequence[int], kernel: int, stride: int = 1, padding: int = 0) -> list[int]:
    return [(side + 2 * padding - kernel) // stride + 1 for side in sides]


def check_dense(dense: str) -> None:
    if dense not in ("linear", "convolution"):
        raise ValueError(f"dense={dense} is unknown; choose linear or convolution")


def dense_layers(
    dense: str, channels: int, sides: Sequence[int], widths: Sequence[int]
) -> dict[str, nn.Module]:
    """Layers 6, 7 and 8 of the older networks, from an image to the last of the widths.

    A convolution as large as its image is the same as a linear layer. Dropout follows each but the last.
    """
    layers = _linear(channels, sides, widths) if dense == "linear" else _convolutions(channels, sides, widths)
    named: dict[str, nn.Module] = {}
    for number, layer in enumerate(layers, 6):
        named[f"fc{number}"] = layer
        if layer is not layers[-1]:
            named |= {f"relu{number}": nn.ReLU(inplace=True), f"dropout{number}": nn.Dropout(0.5)}
    flatten = {"flatten": nn.Flatten()}
    return flatten | named if dense == "linear" else named | flatten


def _linear(channels: int, sides: Sequence[int], widths: Sequence[int]) -> list[nn.Module]:
    return [nn.Linear(ins, outs) for ins, outs in pairwise((channels * prod(sides), *widths))]


def _convolutions(channels: int, sides: Sequence[int], widths: Sequence[int]) -> list[nn.Module]:
    first: nn.Module = nn.Conv2d(channels, widths[0], (sides[0], sides[1]))
    return [first, *(nn.Conv2d(ins, outs, 1) for ins, outs in pairwise(widths))]

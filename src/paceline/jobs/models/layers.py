"""What several of the shipped models are made of."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def chain(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def start_convolutions(model: nn.Module) -> nn.Module:
    """Draw the weights of all convolutions as He et al. (2015) do for ReLU."""
    for module in model.modules():
        # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class Branches(nn.Module):
    """Several branches for the same image, their channels put side by side."""

    def __init__(self, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.children()], dim=1)


def output_sides(sides: Sequence[int], kernel: int, stride: int = 1, padding: int = 0) -> list[int]:
    return [(side + 2 * padding - kernel) // stride + 1 for side in sides]

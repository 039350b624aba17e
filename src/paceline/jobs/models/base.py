"""What a shipped model is."""

from typing import Protocol

from torch import nn

from paceline.jobs.looks import Look


class Architecture(Protocol):
    """A model. A frozen, keyword-only dataclass; its fields are its settings."""

    @property
    def usual(self) -> Look:
        """What it is fed where nobody says otherwise, and what it can be fed."""

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new model, from inputs of this shape to a score a class; its weights are drawn at random."""


def start_convolutions(model: nn.Module) -> None:
    """Draw the weights of all convolutions as He et al. (2015) do for ReLU."""
    for module in model.modules():
        # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

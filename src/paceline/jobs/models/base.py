"""What a shipped model is."""

from typing import Protocol

from torch import nn

from paceline.jobs.data.images import Shape


class Architecture(Protocol):
    """A model for images. A frozen, keyword-only dataclass; its fields are its settings."""

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """A new model, from images of this shape to a score a class; its weights are drawn at random."""

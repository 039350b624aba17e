"""Made-up images of any shape, for trying things out without files."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from paceline.jobs.checks import at_least
from paceline.jobs.data.images import Images, Shape, refuse_folder
from paceline.jobs.data.tensors import TensorData


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Made-up images of any shape: one smooth pattern a class, and noise."""

    shape: Shape = Shape((3, 32, 32))
    """Channels x height x width."""

    classes: int = 10
    """How many kinds of image there are."""

    train: int = 2000
    """Training samples."""

    test: int = 500
    """Test samples."""

    noise: float = 1.0
    """The noise's deviation, where the pattern's is 1; more is harder to learn."""

    seed: int = 0
    """Another seed makes other patterns and other noise."""

    def __post_init__(self) -> None:
        at_least(2, classes=self.classes)
        at_least(1, train=self.train, test=self.test)
        at_least(0, noise=self.noise)

    def load(self, folder: str | None) -> Images:
        """Draw everything from the seed; the same seed gives the same images."""
        refuse_folder("synthetic", folder)
        generator = torch.Generator().manual_seed(self.seed)
        patterns = self._patterns(generator)
        train, test = (self._draw(patterns, samples, generator) for samples in (self.train, self.test))
        return Images(train, test, self.classes)

    def _patterns(self, generator: torch.Generator) -> Tensor:
        channels, height, width = self.shape
        coarse = torch.randn(self.classes, channels, 4, 4, generator=generator)
        patterns = interpolate(coarse, size=(height, width), mode="bilinear")
        return patterns / patterns.std()

    def _draw(self, patterns: Tensor, samples: int, generator: torch.Generator) -> TensorData:
        labels = torch.randint(self.classes, (samples,), generator=generator)
        images = torch.randn(samples, *self.shape, generator=generator)
        images.mul_(self.noise).add_(patterns[labels]).div_((1 + self.noise**2) ** 0.5)
        return TensorData(images, labels)

"""Made-up images of any shape, for trying things out without files."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from paceline.jobs.batches import Batch
from paceline.jobs.data.images import Images, refuse_folder
from paceline.jobs.data.tensors import DrawnData
from paceline.jobs.spec import ImageShape, at_least


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Made-up images of any shape: one smooth pattern a class, and noise."""

    shape: ImageShape = ImageShape((3, 32, 32))
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
        """Everything comes from the seed, when it is first needed; the same seed gives the same images."""
        refuse_folder("synthetic", folder)
        train = DrawnData(self.train, self.shape, partial(self._draw, 1, self.train))
        test = DrawnData(self.test, self.shape, partial(self._draw, 2, self.test))
        return Images(train, test, self.classes)

    def _generator(self, part: int) -> torch.Generator:
        """One a part, so that it does not matter which is drawn first."""
        return torch.Generator().manual_seed(3 * self.seed + part)

    def _patterns(self) -> Tensor:
        channels, height, width = self.shape
        generator = self._generator(0)
        coarse = torch.randn(self.classes, channels, 4, 4, generator=generator)
        patterns = interpolate(coarse, size=(height, width), mode="bilinear")
        return patterns / patterns.std()

    def _draw(self, part: int, samples: int) -> Batch:
        patterns, generator = self._patterns(), self._generator(part)
        labels = torch.randint(self.classes, (samples,), generator=generator)
        images = torch.randn(samples, *self.shape, generator=generator)
        images.mul_(self.noise).add_(patterns[labels]).div_((1 + self.noise**2) ** 0.5)
        return images, labels

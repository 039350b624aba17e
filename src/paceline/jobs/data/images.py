"""Labelled images in memory, and what every source of them shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.jobs.data.tensors import TensorData
from paceline.jobs.spec import Shape


@dataclass(frozen=True, eq=False)
class Images:
    """What a source gives: float32 images of about zero mean and unit variance, and int64 labels."""

    train: TensorData
    test: TensorData
    classes: int

    @property
    def shape(self) -> Shape:
        """The shape of one image."""
        return Shape(self.train.shape)


class Source(Protocol):
    """Where images come from. A frozen, keyword-only dataclass; its fields are its settings."""

    def load(self, folder: str | None) -> Images:
        """Read the files in the folder, or in the usual places; a UsageError says what is missing or broken."""


def labelled(pixels: Tensor, labels: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> TensorData:
    """Bytes of shape (samples, channels, height, width) as normalised floats.

    Mean and deviation are those of pixels / 255, a channel each. The floats are made once and normalised in
    place, so that nothing but four bytes a pixel stays.
    """
    inputs = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    for channel, (middle, spread) in enumerate(zip(mean, deviation, strict=True)):
        inputs[:, channel].sub_(255 * middle).div_(255 * spread)
    return TensorData(inputs, labels.to(torch.int64))


def refuse_folder(name: str, folder: str | None) -> None:
    """Say that this source reads no files, so that a folder is not ignored silently."""
    if folder is not None:
        raise UsageError(f"--data-dir {folder}: {name} reads no files from a folder; leave --data-dir out")

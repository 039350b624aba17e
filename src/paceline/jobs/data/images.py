"""Labelled images in memory, and how their files are found and read."""

import gzip
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.jobs.data.tensors import TensorData
from paceline.jobs.spec import ImageShape


def find_folder(
    name: str, folder: str | None, usual: Sequence[str], inside: Sequence[str], sign: Sequence[str], get: str
) -> Path:
    """The first folder that holds a file named in ``sign``.

    Looks in the folder given, or else in the usual ones, and in the subfolders ``inside`` of each. ``get``
    tells how to get the data.
    """
    roots = [folder] if folder is not None else usual
    places = [Path(root, sub) for root in roots for sub in ("", *inside)]
    for place in places:
        if find_file(place, sign):
            return place
    looked = ", ".join(dict.fromkeys(map(str, places)))
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"no {name} data: there is no folder {folder}; {get}, or name its data folder")
    raise UsageError(f"no {name} data: {sign[0]} is not in {looked}; {get}, or name its data folder")


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def need_file(folder: Path, names: Sequence[str]) -> Path:
    path = find_file(folder, names)
    if path is None:
        raise UsageError(
            f"{folder} has no {' or '.join(names)}, but other files of the same data; get all of them"
        )
    return path


def read_bytes(path: Path) -> bytearray:
    """A whole file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"it does not unpack ({error})") from error
    except OSError as error:
        raise broken(path, f"it cannot be read ({error.strerror or error})") from error


def broken(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged or of another kind: {why}; get the file again")


@dataclass(frozen=True, eq=False)
class Images:
    """What a source gives: float32 images of about zero mean and unit variance, and int64 labels."""

    train: TensorData
    test: TensorData
    classes: int

    @property
    def shape(self) -> ImageShape:
        return ImageShape(self.train.shape)


class DataSource(Protocol):
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
        raise UsageError(f"{name} reads no files, so the data folder {folder} has no place; leave it out")

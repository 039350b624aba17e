"""MNIST, Fashion-MNIST and the digits that come with the package: images and labels in idx files, plain or gzipped."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.jobs.data.images import (
    Images,
    broken,
    find_folder,
    labelled,
    need_file,
    read_bytes,
    refuse_folder,
)
from paceline.jobs.data.tensors import TensorData

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 + 10,000 grey 28x28 images of clothes, 10 classes."""

    def load(self, folder: str | None) -> Images:
        usual = ("/usr/share/datasets/fashion-mnist", "data/fashion-mnist", "data")
        place = find_folder(
            "fashion-mnist",
            folder,
            usual,
            inside=("fashion-mnist", "FashionMNIST/raw"),
            sign=_names("train", "images", 3),
            get="on Debian 'apt-get install dataset-fashion-mnist' installs it, elsewhere download its four "
            "idx files (https://github.com/zalandoresearch/fashion-mnist) into data/fashion-mnist",
        )
        return read_images(place, mean=0.2860, deviation=0.3530)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 60,000 + 10,000 grey 28x28 images of handwritten digits, 10 classes."""

    def load(self, folder: str | None) -> Images:
        place = find_folder(
            "mnist",
            folder,
            usual=("data/mnist", "data", "/usr/share/datasets/mnist"),
            inside=("mnist", "MNIST/raw"),
            sign=_names("train", "images", 3),
            get="download its four idx files (for example from "
            "https://ossci-datasets.s3.amazonaws.com/mnist/) into data/mnist",
        )
        return read_images(place, mean=0.1307, deviation=0.3081)


def read_images(folder: Path, mean: float, deviation: float) -> Images:
    train, test = (_read_pair(folder, part, mean, deviation) for part in ("train", "t10k"))
    return Images(train, test, CLASSES)


def _names(part: str, what: str, dimensions: int) -> tuple[str, ...]:
    """What such a file is called; the second form is how some archives unpack."""
    stems = (f"{part}-{what}-idx{dimensions}-ubyte", f"{part}-{what}.idx{dimensions}-ubyte")
    return tuple(stem + end for stem in stems for end in ("", ".gz"))


def _read_pair(folder: Path, part: str, mean: float, deviation: float) -> TensorData:
    images = need_file(folder, _names(part, "images", 3))
    pixels = read_idx(images, dimensions=3)
    if pixels.shape[1:] != (28, 28):
        raise broken(images, f"its images are {pixels.shape[1]}x{pixels.shape[2]}, not 28x28")
    labels = read_labels(need_file(folder, _names(part, "labels", 1)), len(pixels))
    return labelled(pixels.unsqueeze(1), labels, (mean,), (deviation,))


def read_labels(path: Path, samples: int) -> Tensor:
    labels = read_idx(path, dimensions=1)
    if len(labels) != samples:
        raise broken(path, f"it has {len(labels):,} labels for {samples:,} images")
    if int(labels.max()) >= CLASSES:
        raise broken(path, f"a label is {int(labels.max())}, and labels are 0 to {CLASSES - 1}")
    return labels


def read_idx(path: Path, dimensions: int) -> Tensor:
    """A tensor of bytes: two zero bytes, the type (8), the dimensions and each as 4 bytes, the items."""
    data = read_bytes(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes((0, 0, 8, dimensions)):
        raise broken(path, f"it does not begin as an idx file of bytes in {dimensions} dimensions")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, head, 4)]
    items = 1
    for side in shape:
        items *= side
    if items == 0 or len(data) - head != items:
        raise broken(
            path, f"it says that it holds {items:,} bytes after its head, and holds {len(data) - head:,}"
        )
    return torch.frombuffer(data, dtype=torch.uint8, offset=head).view(shape)


FILES = Path(__file__).parent.parent / "files"

BRIGHTEST = 16
MEAN, DEVIATION = 0.3058, 0.3762


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,437 + 360 grey 8x8 images of handwritten digits, 10 classes; inside the package."""

    def load(self, folder: str | None) -> Images:
        """Sort by label, keep the order otherwise: every fifth image from the first is for the test.

        So both parts have the same mix of digits and of writers, and no random numbers are needed.
        """
        refuse_folder("digits", folder)
        pixels = read_idx(FILES / "digits-images-idx3-ubyte.gz", dimensions=3).unsqueeze(1)
        labels = read_labels(FILES / "digits-labels-idx1-ubyte.gz", len(pixels))
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[labels.argsort(stable=True)[::5]] = True
        scale = BRIGHTEST / 255
        train, test = (
            labelled(pixels[part], labels[part], (MEAN * scale,), (DEVIATION * scale,))
            for part in (~is_test, is_test)
        )
        return Images(train, test, classes=10)

"""The data sets that ship: labelled images in memory, read from their usual files or made up.

``files/datasets.toml`` says where each is looked for and how to get it.
"""

import gzip
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from paceline.errors import UsageError
from paceline.jobs.batches import Batch
from paceline.jobs.data import DrawnData, TensorData
from paceline.jobs.spec import ImageShape
from paceline.specs.ranges import AtLeastOne, NotNegative, RangeChecked, at_least

FILES = Path(__file__).parent / "files"
Labelled = tuple[Tensor, Tensor]
"""Pixels, bytes of shape (samples, channels, height, width), and labels."""


@dataclass(frozen=True, eq=False)
class Images:
    """What a source gives: float32 images of about zero mean and unit variance, and int64 labels."""

    train: TensorData | DrawnData
    test: TensorData | DrawnData
    classes: int = 10

    @property
    def shape(self) -> ImageShape:
        return ImageShape(self.train.shape)


class DataSource(Protocol):
    """Where images come from. A frozen, keyword-only dataclass; its fields are its settings."""

    def load(self, folder: str | None) -> Images:
        """Read the files in the folder, or in the usual places; a UsageError says what is missing or broken."""


def _places(name: str) -> dict[str, Any]:
    known: dict[str, Any] = tomllib.loads((FILES / "datasets.toml").read_text())[name]
    return known


def find_files(name: str, folder: str | None) -> list[Path]:
    """Each file of a data set by the first of its names that exists, all in one folder."""
    known = _places(name)
    roots = known["usual"] if folder is None else [folder]
    places = [Path(root, sub) for root in roots for sub in ("", *known["inside"])]
    for place in places:
        found = [next(filter(Path.is_file, (place / one for one in names)), None) for names in known["files"]]
        files = [path for path in found if path is not None]
        if files:
            if len(files) < len(found):
                missing = " or ".join(known["files"][found.index(None)])
                raise UsageError(
                    f"{place} has no {missing}, but other files of the same data; get all of them"
                )
            return files
    wrong = f"{known['files'][0][0]} is not in {', '.join(dict.fromkeys(map(str, places)))}"
    if folder is not None and not Path(folder).is_dir():
        wrong = f"there is no folder {folder}"
    raise UsageError(f"no {name} data: {wrong}; {known['get']}, or name its data folder")


def _images(name: str, train: Labelled, test: Labelled) -> Images:
    """Make floats of about zero mean and unit variance, in place, so that they take four bytes a pixel and no more."""
    known, made = _places(name), []
    for pixels, labels in (train, test):
        inputs = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        for channel, (middle, spread) in enumerate(zip(known["mean"], known["deviation"], strict=True)):
            inputs[:, channel].sub_(255 * middle).div_(255 * spread)
        made.append(TensorData(inputs, labels.to(torch.int64)))
    return Images(made[0], made[1])


def broken(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged or of another kind: {why}; get the file again")


def _read_bytes(path: Path) -> bytearray:
    try:
        data = path.read_bytes()
        return bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"it does not unpack ({error})") from error
    except OSError as error:
        raise broken(path, f"it cannot be read ({error.strerror or error})") from error


def refuse_folder(name: str, folder: str | None) -> None:
    if folder is not None:
        raise UsageError(f"{name} reads no files, so the data folder {folder} has no place; leave it out")


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,437 + 360 grey 8x8 images of handwritten digits, 10 classes; inside the package."""

    def load(self, folder: str | None) -> Images:
        """Sort by label: every fifth image is for the test, so both parts have the same mix of digits and writers."""
        refuse_folder("digits", folder)
        pixels, labels = _read_idx_pair(
            FILES / "digits-images-idx3-ubyte.gz", FILES / "digits-labels-idx1-ubyte.gz", side=8
        )
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[labels.argsort(stable=True)[::5]] = True
        return _images("digits", (pixels[~is_test], labels[~is_test]), (pixels[is_test], labels[is_test]))


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 + 10,000 grey 28x28 images of clothes, 10 classes."""

    def load(self, folder: str | None) -> Images:
        return _load_idx("fashion-mnist", folder)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 60,000 + 10,000 grey 28x28 images of handwritten digits, 10 classes."""

    def load(self, folder: str | None) -> Images:
        return _load_idx("mnist", folder)


def _load_idx(name: str, folder: str | None) -> Images:
    train, train_labels, test, test_labels = find_files(name, folder)
    return _images(name, _read_idx_pair(train, train_labels), _read_idx_pair(test, test_labels))


def _read_idx_pair(images: Path, labels: Path, side: int = 28) -> Labelled:
    pixels, classes = _read_idx(images, dimensions=3), _read_idx(labels, dimensions=1)
    if pixels.shape[1:] != (side, side):
        raise broken(images, f"its images are {pixels.shape[1]}x{pixels.shape[2]}, not {side}x{side}")
    if len(classes) != len(pixels) or int(classes.max()) > 9:
        raise broken(
            labels,
            f"it has {len(classes):,} labels up to {int(classes.max())}, not {len(pixels):,} from 0 to 9",
        )
    return pixels.unsqueeze(1), classes


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """A tensor of bytes: two zero bytes, the type (8), the dimensions and each as 4 bytes, the items."""
    data = _read_bytes(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes((0, 0, 8, dimensions)):
        raise broken(path, f"it does not begin as an idx file of bytes in {dimensions} dimensions")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, head, 4)]
    items, held = prod(shape), len(data) - head
    if items == 0 or held != items:
        raise broken(path, f"it says that it holds {items:,} bytes after its head, and holds {held:,}")
    return torch.frombuffer(data, dtype=torch.uint8, offset=head).view(shape)


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 50,000 + 10,000 colour 32x32 images, 10 classes; the binary version."""

    def load(self, folder: str | None) -> Images:
        """Read the six .bin files; the Python version is a pickle, which can run code, and is not read."""
        *train, test = find_files("cifar10", folder)
        return _images("cifar10", _read_cifar(train), _read_cifar([test]))


CIFAR_SAMPLE = 1 + 3 * 32 * 32
"""A label, then the pixels: all red ones, all green ones, all blue ones."""


def _read_cifar(files: Sequence[Path]) -> Labelled:
    parts = []
    for path in files:
        data = _read_bytes(path)
        if not data or len(data) % CIFAR_SAMPLE:
            raise broken(
                path, f"its {len(data):,} bytes are not a whole number of samples of {CIFAR_SAMPLE:,} bytes"
            )
        parts.append(torch.frombuffer(data, dtype=torch.uint8).view(-1, CIFAR_SAMPLE))
        if (largest := int(parts[-1][:, 0].max())) > 9:
            raise broken(path, f"a label is {largest}, and labels are 0 to 9")
    samples = torch.cat(parts)
    return samples[:, 1:].view(-1, 3, 32, 32), samples[:, 0]


@dataclass(frozen=True, kw_only=True)
class Svhn:
    """SVHN: 73,257 + 26,032 colour 32x32 images of house numbers' digits, 10 classes; needs scipy."""

    def load(self, folder: str | None) -> Images:
        train, test = find_files("svhn", folder)
        return _images("svhn", _read_svhn(train), _read_svhn(test))


def _read_svhn(path: Path) -> Labelled:
    """Cropped house numbers in MATLAB's format: X of shape (32, 32, 3, samples), y from 1 to 10."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise UsageError("svhn needs scipy, which is not installed: pip install 'paceline[svhn]'") from error
    try:
        arrays: dict[str, Any] = loadmat(path)
        images, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:  # scipy raises whatever the damaged bytes lead it to
        raise broken(
            path, f"scipy finds no arrays X and y in it ({type(error).__name__}: {error})"
        ) from error
    if images.shape != (32, 32, 3, len(labels)) or images.dtype != "uint8" or not len(labels):
        raise broken(path, f"X is {images.dtype} of shape {images.shape} with {len(labels):,} labels in y")
    if labels.min() < 1 or labels.max() > 10:
        raise broken(path, f"labels run from {labels.min()} to {labels.max()}, and must be 1 to 10")
    digits = torch.from_numpy(labels.astype("int64") % 10)  # the files call the digit 0 a 10
    return torch.from_numpy(images).permute(3, 2, 0, 1), digits


@dataclass(frozen=True, kw_only=True)
class Synthetic(RangeChecked):
    """Made-up images of any shape: one smooth pattern a class, and noise."""

    shape: ImageShape = ImageShape((3, 32, 32))
    """Channels x height x width."""
    classes: Annotated[int, at_least(2)] = 10
    """How many kinds of image there are."""
    train: AtLeastOne = 2000
    """Training samples."""
    test: AtLeastOne = 500
    """Test samples."""
    noise: NotNegative = 1.0
    """The noise's deviation, where the pattern's is 1; more is harder to learn."""
    seed: int = 0
    """Another seed makes other patterns and other noise."""

    def load(self, folder: str | None) -> Images:
        """Everything comes from the seed, when it is first needed; the same seed gives the same images."""
        refuse_folder("synthetic", folder)
        train = DrawnData(self.train, self.shape, partial(self._draw, 1, self.train))
        test = DrawnData(self.test, self.shape, partial(self._draw, 2, self.test))
        return Images(train, test, self.classes)

    def _generator(self, part: int) -> torch.Generator:
        """One a part, so that it does not matter which is drawn first."""
        return torch.Generator().manual_seed(3 * self.seed + part)

    def _draw(self, part: int, samples: int) -> Batch:
        channels, *sides = self.shape
        coarse = torch.randn(self.classes, channels, 4, 4, generator=self._generator(0))
        patterns = interpolate(coarse, size=sides, mode="bilinear")
        patterns /= patterns.std()
        generator = self._generator(part)
        labels = torch.randint(self.classes, (samples,), generator=generator)
        images = torch.randn(samples, *self.shape, generator=generator)
        images.mul_(self.noise).add_(patterns[labels]).div_((1 + self.noise**2) ** 0.5)
        return images, labels

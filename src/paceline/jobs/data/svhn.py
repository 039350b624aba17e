"""SVHN: house numbers, cropped to single digits, in MATLAB's format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.jobs.data.images import Images, broken, find_folder, labelled, need_file
from paceline.jobs.data.tensors import TensorData

MEAN, DEVIATION = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


@dataclass(frozen=True, kw_only=True)
class Svhn:
    """SVHN: 73,257 + 26,032 colour 32x32 images of house numbers' digits, 10 classes; needs scipy."""

    def load(self, folder: str | None) -> Images:
        place = find_folder(
            "svhn",
            folder,
            usual=("data/svhn", "data"),
            inside=("svhn",),
            sign=("train_32x32.mat",),
            get="download train_32x32.mat and test_32x32.mat (http://ufldl.stanford.edu/housenumbers/) "
            "into data/svhn",
        )
        train, test = (_read(need_file(place, (f"{part}_32x32.mat",))) for part in ("train", "test"))
        return Images(train, test, classes=10)


def _read(path: Path) -> TensorData:
    arrays = _load(path)
    if not {"X", "y"} <= arrays.keys():
        raise broken(path, "it has no arrays X and y")
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.shape != (32, 32, 3, len(labels)) or images.dtype != "uint8" or not len(labels):
        raise broken(path, f"X is {images.dtype} of shape {images.shape} with {len(labels):,} labels in y")
    if labels.min() < 1 or labels.max() > 10:
        raise broken(path, f"labels run from {labels.min()} to {labels.max()}, and must be 1 to 10")
    pixels = torch.from_numpy(images).permute(3, 2, 0, 1)
    # The files call the digit 0 a 10.
    return labelled(pixels, torch.from_numpy(labels.astype("int64") % 10), MEAN, DEVIATION)


def _load(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise UsageError("svhn needs scipy, which is not installed: pip install 'paceline[svhn]'") from error
    try:
        arrays: dict[str, Any] = loadmat(path)
    except Exception as error:  # scipy raises whatever the damaged bytes lead it to
        raise broken(path, f"scipy cannot read it ({type(error).__name__}: {error})") from error
    return arrays

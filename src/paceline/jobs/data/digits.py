"""The handwritten digits that come with the package."""

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.jobs.data.idx import read_idx, read_labels
from paceline.jobs.data.images import Images, labelled, refuse_folder

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

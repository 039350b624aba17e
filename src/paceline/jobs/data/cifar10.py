"""CIFAR-10 in its binary version."""

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.jobs.data.images import Images, broken, find_folder, labelled, need_file, read_bytes
from paceline.jobs.data.tensors import TensorData

SAMPLE = 1 + 3 * 32 * 32
"""A label, then the pixels: all red ones, all green ones, all blue ones."""
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 50,000 + 10,000 colour 32x32 images, 10 classes; the binary version."""

    def load(self, folder: str | None) -> Images:
        """Read the six .bin files; the Python version is a pickle, which can run code, and is not read."""
        place = find_folder(
            "cifar10",
            folder,
            usual=("data/cifar10", "data"),
            inside=("cifar-10-batches-bin",),
            sign=("data_batch_1.bin",),
            get="unpack the binary version, not the Python one "
            "(https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz), into data/cifar10",
        )
        train = [need_file(place, (f"data_batch_{number}.bin",)) for number in range(1, 6)]
        return Images(_read(train), _read([need_file(place, ("test_batch.bin",))]), classes=10)


def _read(paths: list[Path]) -> TensorData:
    samples = torch.cat([_samples(path) for path in paths])
    return labelled(samples[:, 1:].view(-1, 3, 32, 32), samples[:, 0], MEAN, DEVIATION)


def _samples(path: Path) -> torch.Tensor:
    data = read_bytes(path)
    if not data or len(data) % SAMPLE:
        raise broken(path, f"its {len(data):,} bytes are not a whole number of samples of {SAMPLE:,} bytes")
    samples = torch.frombuffer(data, dtype=torch.uint8).view(-1, SAMPLE)
    if int(samples[:, 0].max()) > 9:
        raise broken(path, f"a label is {int(samples[:, 0].max())}, and labels are 0 to 9")
    return samples

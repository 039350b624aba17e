"""A job whose samples come from a slow disk: each takes a millisecond; LOADERS processes of each worker read ahead."""

import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from paceline import Job


class SlowDisk(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(1e-3)
        return torch.full((256,), float(index % 4)), index % 4


def build() -> Job:
    return Job(
        name="slow-disk",
        model=lambda: nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 4)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        train=SlowDisk(),  # type: ignore[arg-type]
        loader_workers=int(os.environ.get("LOADERS", "0")),
    )

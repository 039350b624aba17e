"""Jobs that sleep where others compute, so that their times are the same on a busy machine."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from paceline import Job


class SleepyData(Dataset[tuple[Tensor, int]]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.seconds)
        return torch.full((16,), float(index % 4)), index % 4


class SleepyModel(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(inputs)


def starved() -> Job:
    """Each sample is slept for."""
    return _job("starved", nn.Linear, SleepyData(0.001))


def steady() -> Job:
    """A step takes a little more than 20 ms."""
    return _job("steady", SleepyModel, SleepyData(0.0))


def _job(name: str, model: type[nn.Linear], data: SleepyData) -> Job:
    return Job(
        name=name,
        model=lambda: model(16, 4),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train=data,  # type: ignore[arg-type]
    )

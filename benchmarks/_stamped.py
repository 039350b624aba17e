"""The embedded digits and `cnn`, with a clock of its own: the time of every forward of a step goes to a file.

As a job, `paceline train --job benchmarks/_stamped.py:build`, and as a script with its own loop. STAMPS names the
folder; each process has a file there, named after its number, of 8 bytes a step.
"""

import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec

BATCH = 16


class Stamps:
    """Called before each forward; what is written is there even where the process ends at once."""

    def __init__(self) -> None:
        self._file: int | None = None

    def __call__(self, model: nn.Module, _: Any) -> None:
        now = time.perf_counter()
        if not model.training:
            return
        if self._file is None:
            path = Path(os.environ["STAMPS"], str(os.getpid()))
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, struct.pack("d", now))


def read_stamps(path: Path) -> list[float]:
    return [one for (one,) in struct.iter_unpack("d", path.read_bytes())]


def stamped(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(Stamps())
    return model


def build() -> paceline.Job:
    job = build_job(JobSpec())
    return replace(job, model=lambda: stamped(job.model()))


def main() -> None:
    job = build_job(JobSpec())
    data = TensorDataset(*job.train.take(torch.arange(job.train_samples)))
    torch.manual_seed(1)
    model = stamped(job.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    worker = paceline.distribute(model, optimizer)
    shard = worker.shard(DataLoader(data, batch_size=BATCH, shuffle=True))
    for _ in range(int(os.environ["EPOCHS"])):
        for inputs, labels in shard:
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""Jobs that the engine's tests train: small, and with what can go wrong in a replica."""

import random
from dataclasses import replace

import numpy as np
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from paceline.jobs.data import TensorData
from paceline.jobs.job import Job


def _data(samples: int, features: int = 12, classes: int = 4) -> TensorData:
    generator = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, features, generator=generator)
    return TensorData(inputs, inputs[:, :classes].argmax(dim=1))


def _job(name: str, model, train: int = 200) -> Job:
    return Job(
        name=name,
        model=model,
        loss=cross_entropy,
        train=_data(train),
        test=_data(51),
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
        metrics={"accuracy": lambda outputs, targets: (outputs.argmax(dim=1) == targets).sum()},
    )


def dropout() -> Job:
    """The random stream decides the result."""
    return _job(
        "dropout", lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    )


def plain() -> Job:
    """As above, of an optimizer without momentum, whose place a codec can take."""
    return replace(dropout(), name="plain", optimizer=lambda parameters: optim.SGD(parameters, lr=0.05))


def batch_norm() -> Job:
    """The buffers decide the result."""
    return _job(
        "norm", lambda: nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    )


def leftover() -> Job:
    """65 samples in batches of 16 + 16: one sample is left, so one worker has none."""
    return _job("leftover", lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)), train=65)


def wide() -> Job:
    """Six megabytes of gradients in three buckets, so that bytes can be counted on the sockets."""
    return _job("wide", lambda: nn.Sequential(nn.Linear(12, 1024), nn.Linear(1024, 1400), nn.Linear(1400, 4)))


def halves() -> Job:
    """A model that cannot be flattened."""
    return _job("halves", lambda: nn.Linear(12, 4).half())


class Partial(nn.Module):
    """One layer is never used, so backward never reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(12, 16), nn.Linear(50, 50), nn.Linear(16, 4)

    def forward(self, inputs):
        return self.last(self.first(inputs).relu())


def partial() -> Job:
    return _job("partial", Partial)


class Rooted(nn.Module):
    """The square root of one sample is 0, where its derivative is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.first(inputs) + (inputs[:, :1].abs() * self.scale[:1]).sqrt()


def not_finite() -> Job:
    job = _job("not_finite", Rooted)
    job.train.inputs[70, 0] = 0.0
    return job


class Restless(nn.Module):
    """Counts its calls, and what it computes depends on them: as on its buffers, and on every random stream."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.calls = 0

    def forward(self, inputs):
        self.calls += self.training
        hidden = self.norm(self.first(inputs)).relu()
        noise = random.random() + np.random.random() if self.training else 0.0
        return self.last(nn.functional.dropout(hidden, 0.3, self.training)) * (1 + 0.01 * self.calls + noise)


class Augmented:
    """Not in memory: every batch draws random numbers."""

    def __init__(self, data: TensorData) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def take(self, indices):
        inputs, targets = self._data.take(indices)
        return inputs + 0.1 * torch.randn_like(inputs) * random.random(), targets


def restless() -> Job:
    job = _job("restless", Restless)
    return replace(job, train=Augmented(job.train), accumulate=2)


class Uncopied(nn.Linear):
    def __deepcopy__(self, _):
        raise TypeError("this model cannot be copied")


def uncopied() -> Job:
    return _job("uncopied", lambda: Uncopied(12, 4))

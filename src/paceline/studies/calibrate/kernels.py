"""Small training steps that stand for any: what computes while others compute and messages travel."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from paceline.collectives.buckets import plan_buckets
from paceline.runtimes.flat import CONTROL, Flat, Zeros, flatten_parameters, own_memory
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.overlap import Overlap
from paceline.runtimes.live.worker.slowness import Slowness
from paceline.strategies.effects import BucketedMean

MEAN = BucketedMean(first_bucket=2**20, bucket=25 * 2**20)
"""How gradients are averaged unless somebody says otherwise."""
WIDTHS = (40, 420, 700, 1100)
"""Of dense layers whose gradients are of some 40 kB, 1 MB, 2.5 MB and 5.7 MB."""
DENSE, IMAGES = 32, 24
"""Samples of a step."""


class Step(Protocol):
    """One training step of one network."""

    def __call__(self) -> None:
        """Take it."""


def images(*_: object) -> nn.Module:
    """Many short operators, as small convolutional networks have."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 14, 14)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 24, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 49, 10),
    )


def dense(width: int) -> nn.Module:
    """A few matrix products and an optimizer's pass over their weights."""
    return nn.Sequential(
        nn.Linear(196, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class Plain:
    """A network on flat buffers, trained on one batch of noise, by a worker who talks to nobody."""

    def __init__(self, model: nn.Module, samples: int = DENSE, zeros: Zeros = own_memory) -> None:
        self._model, self.flat = model, flatten_parameters(model, zeros)
        self._inputs, self._targets = torch.randn(samples, 196), torch.randint(0, 10, (samples,))
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self) -> None:
        """Forward, backward and the optimizer's step."""
        loss = self._loss(self._model(self._inputs), self._targets)
        self.flat.grad_storage.zero_()
        self._begin()
        loss.backward()
        loss.item()
        self._end()
        self._optimizer.step()

    def _begin(self) -> None:
        """Backward is about to start."""

    def _end(self) -> None:
        """Backward has ended."""


class Averaged(Plain):
    """The same with everybody's gradients averaged, as a live worker does it: in buckets, behind backward."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        super().__init__(model, zeros=group.zeros)
        self._overlap = Overlap(self.flat, MEAN, group, Slowness())

    def _begin(self) -> None:
        self._overlap.begin()

    def _end(self) -> None:
        storage = self.flat.grad_storage
        storage[0], storage[1] = DENSE, 0.0
        self._overlap.finish()
        storage[:2].tolist()


def bucket_bytes(flat: Flat) -> tuple[int, ...]:
    """What is all-reduced in a step, one after the other."""
    element = flat.grad_storage.element_size()
    sizes = [parameter.numel() for parameter in flat.parameters]
    buckets = plan_buckets(sizes, element, MEAN.first_bucket, MEAN.bucket)
    *early, last = ((bucket.stop - bucket.start) * element for bucket in buckets)
    return (*early, last + CONTROL * element)


def repeated(step: Callable[[], None], times: int) -> Callable[[], None]:
    """So many steps in a row."""

    def steps() -> None:
        for _ in range(times):
            step()

    return steps

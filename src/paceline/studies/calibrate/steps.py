"""Plain training steps of a subject, as the live runtime does them, timed by part."""

from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from paceline.jobs.batches import batch_loss
from paceline.jobs.subject import Subject
from paceline.runtimes.flat import flatten_buffers, flatten_parameters
from paceline.runtimes.optimizers import flat_optimizer, plain_step


class Parts(NamedTuple):
    """Seconds of one step."""

    forward: float
    backward: float
    apply: float

    @property
    def step(self) -> float:
        """All of it."""
        return sum(self)


class PlainStep:
    """A subject's model on flat buffers, with one mini-batch that it is trained on again and again."""

    def __init__(self, subject: Subject, samples: int) -> None:
        self._subject = subject
        self._model = subject.model().train()
        self._flat = flatten_parameters(self._model)
        self._buffers = flatten_buffers(self._model)
        self._apply = plain_step(flat_optimizer(subject.optimizer, self._flat))
        self._batch = subject.batch(samples)

    def run(self) -> Parts:
        """One step."""
        begin = perf_counter()
        loss = batch_loss(self._subject, self._model, self._batch)
        forward = perf_counter()
        self._flat.grad_storage.zero_()
        loss.backward(torch.full_like(loss, 1.0))  # type: ignore[no-untyped-call]
        loss.item()
        backward = perf_counter()
        self._apply()
        return Parts(forward - begin, backward - forward, perf_counter() - backward)


def typical(steps: list[Parts]) -> Parts:
    """The medians of the parts."""
    return Parts(*(median(part) for part in zip(*steps, strict=True)))

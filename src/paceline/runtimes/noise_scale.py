"""The gradient noise scale, measured while training (McCandlish et al., 2018, appendix A.1).

The squared norm of a gradient over a batch of B samples is |G|^2 + S / B in the mean, where G is the true gradient and
S the sum of the variances of one sample's. Two batch sizes in one step give both; S / |G|^2 is the batch beyond which
most of what is computed is wasted. Each is averaged over steps before they are divided, because a single one of them
is mostly noise.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paceline.collectives.traffic import Bucket
from paceline.jobs.sharding import Shards
from paceline.jobs.step import StepHooks, StepPhase
from paceline.records.summary import NoiseScale

EVERY = 8
"""Steps from one measurement to the next: fewer cost more, and tell sooner."""
DECAY = 0.95
"""What a measurement leaves of the weight of those before it: closer to 1 averages over more of the run."""
SETTLED = 8
"""Measurements before the first figure."""


def squared_norm(parts: Iterable[Tensor]) -> Tensor:
    """Of a vector that is given in parts; a tensor, so that a device need not be waited for."""
    return torch.stack([torch.dot(part, part) for part in parts]).sum()


def in_buckets(grad: Tensor, buckets: Sequence[Bucket]) -> list[Tensor]:
    return [grad[one.start : one.stop] for one in buckets]


class NoiseMeter:
    """What one worker knows of the noise scale: of all workers' gradients, or of its own mini-batches."""

    def __init__(self, shards: Shards, rank: int, accumulate: int) -> None:
        self._shards, self._rank, self._accumulate = shards, rank, accumulate
        self._measured = 0
        self._weight = self._noise = self._signal = 0.0
        self._low, self._high = float("inf"), 0.0

    def due(self, step: int) -> bool:
        """Whether to measure in this step; an epoch's last one is left out where its batch is smaller."""
        return step % EVERY == 0 and self._shards.total(step) == self._shards.global_batch

    def mini_batches_due(self, step: int) -> bool:
        """As above, where a worker's own mini-batches are compared."""
        whole = self._shards.size(self._rank, step) == self._shards.batch_size(self._rank)
        return step % EVERY == 0 and self._accumulate > 1 and whole

    def compare_workers(self, squares: float, mean: Tensor) -> None:
        """``squares`` are the squared norms of all workers' own mean gradients, added up; ``mean`` is that of all."""
        sizes = self._shards.batch_sizes
        small = sum(1 / size for size in sizes) / len(sizes)
        self._add(squares / len(sizes), small, float(squared_norm([mean])), 1 / self._shards.global_batch)

    def compare_mini_batches(self, first: float, mean: Tensor) -> None:
        """``first`` is the squared norm of the first mini-batch's gradient; ``mean`` is that of all of a step's."""
        size = self._shards.batch_size(self._rank)
        self._add(first, self._accumulate / size, float(squared_norm([mean])), 1 / size)

    def _add(self, few: float, inverse_few: float, many: float, inverse_many: float) -> None:
        """Take in two squared norms, each with one over its batch: the line through them is |G|^2 + S / B."""
        noise = (few - many) / (inverse_few - inverse_many)
        signal = many - noise * inverse_many
        if not abs(noise) + abs(signal) < float("inf"):
            return  # training diverges, and says so elsewhere
        self._measured += 1
        self._weight = DECAY * self._weight + 1
        self._noise = DECAY * self._noise + noise
        self._signal = DECAY * self._signal + signal
        if (value := self.value) is not None:
            self._low, self._high = min(self._low, value), max(self._high, value)

    @property
    def value(self) -> float | None:
        """In samples; None before there is enough to tell, or where the noise hides the gradient altogether."""
        if self._measured < SETTLED or min(self._noise, self._signal) <= 0:
            return None
        return float(f"{self._noise / self._signal:.4g}")

    def summary(self) -> NoiseScale | None:
        if (value := self.value) is None:
            return None
        return NoiseScale(last=value, low=self._low, high=self._high, batch=self._shards.global_batch)

    def state(self) -> list[float]:
        return [self._measured, self._weight, self._noise, self._signal, self._low, self._high]

    def load(self, state: Sequence[float]) -> None:
        measured, self._weight, self._noise, self._signal, self._low, self._high = state
        self._measured = int(measured)


class FirstMiniBatch(StepHooks):
    """Passes everything on, and keeps the squared norm of the gradient as the first backward leaves it."""

    def __init__(self, hooks: StepHooks, grad: Tensor) -> None:
        self._hooks, self._grad = hooks, grad
        self.square: Tensor | None = None

    def begin(self, phase: StepPhase) -> None:
        self._hooks.begin(phase)

    def end(self, phase: StepPhase) -> None:
        if phase == "backward" and self.square is None:
            self.square = squared_norm([self._grad])
        self._hooks.end(phase)

    def last_backward(self) -> None:
        self._hooks.last_backward()

    def read(self, loss: Tensor) -> float:
        return self._hooks.read(loss)

"""Which samples each worker sees in each step; pure arithmetic on the seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from paceline.errors import UsageError


@dataclass(frozen=True)
class Shards:
    """Every epoch is a fresh permutation of the samples, cut into global batches, cut into one part a worker.

    The order depends on the seed and the epoch alone, so N workers of batch B/N see what one worker of batch
    B sees. Steps count from 0 and run on through the epochs. An epoch's last global batch may be smaller;
    it is split in proportion to the batch sizes, so a worker may get nothing in it.

    A worker that joins late has a higher rank than these. It goes through all samples in an order of its own.
    """

    samples: int
    batch_sizes: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        assert self.batch_sizes, "at least one worker"
        assert min(self.batch_sizes) > 0, "every worker has a batch size"
        if self.global_batch > self.samples:
            parts = f" ({' + '.join(map(str, self.batch_sizes))})" if 1 < len(self.batch_sizes) <= 8 else ""
            raise UsageError(
                f"a batch of {self.global_batch:,} samples over all workers{parts} is larger than the "
                f"training data ({self.samples:,} samples); choose a smaller batch size or fewer workers"
            )

    @cached_property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)

    @cached_property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.global_batch)

    def batch_size(self, worker: int) -> int:
        return self.batch_sizes[worker % len(self.batch_sizes)]

    def size(self, worker: int, step: int) -> int:
        if worker >= len(self.batch_sizes):
            return self._late(worker).size(0, step)
        if (step + 1) % self.steps_per_epoch:
            return self.batch_sizes[worker]
        return self._last_cuts[worker + 1] - self._last_cuts[worker]

    def total(self, step: int) -> int:
        return self.global_batch if (step + 1) % self.steps_per_epoch else self._last_cuts[-1]

    def steps_through(self, seen: int) -> int:
        """Steps that are finished when all workers together have trained on ``seen`` samples."""
        epochs, rest = divmod(seen, self.samples)
        return epochs * self.steps_per_epoch + rest // self.global_batch

    def indices(self, worker: int, step: int) -> Tensor:
        """The samples of one worker in a step; a view that must not be written to."""
        if worker >= len(self.batch_sizes):
            return self._late(worker).indices(0, step)
        epoch, batch = divmod(step, self.steps_per_epoch)
        cuts = self._cuts if batch + 1 < self.steps_per_epoch else self._last_cuts
        start = batch * self.global_batch
        order = permutation(self.samples, self.seed, epoch)
        return order[start + cuts[worker] : start + cuts[worker + 1]]

    def _late(self, worker: int) -> "Shards":
        return Shards(self.samples, (self.batch_size(worker),), mix_seed(self.seed, -1 - worker))

    @cached_property
    def _cuts(self) -> Sequence[int]:
        return (0, *accumulate(self.batch_sizes))

    @cached_property
    def _last_cuts(self) -> Sequence[int]:
        last = self.samples - (self.steps_per_epoch - 1) * self.global_batch
        return tuple(last * cut // self.global_batch for cut in self._cuts)


# Workers may be in different epochs; a few orders serve all but the most uneven.
@lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    return torch.randperm(samples, generator=generator)


def mix_seed(seed: int, epoch: int) -> int:
    """32 bits, which is all that torch's CPU generator uses; no two epochs of a seed share them."""
    high, low = divmod(seed % 2**64, 2**32)
    return _scramble(_scramble(epoch + _scramble(low)) ^ _scramble(high ^ 0x9E3779B9) ^ low)


def _scramble(value: int) -> int:
    """A bijection of 32-bit numbers in which every bit depends on every other (MurmurHash3's finalizer)."""
    value %= 2**32
    value = (value ^ value >> 16) * 0x85EBCA6B % 2**32
    value = (value ^ value >> 13) * 0xC2B2AE35 % 2**32
    return value ^ value >> 16


TEST_BATCH = 256


def scoring_batches(samples: int, worker: int, workers: int) -> list[range]:
    """The batches of the test data that a worker scores: whole ones, so that the number of workers changes no score."""
    batches = [range(start, min(start + TEST_BATCH, samples)) for start in range(0, samples, TEST_BATCH)]
    return batches[len(batches) * worker // workers : len(batches) * (worker + 1) // workers]

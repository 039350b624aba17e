"""A loader's samples, dealt out to the workers: all get equally many, so that all take equally many steps."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import UsageError


class DealtSampler(Sampler[Any]):
    """Every ``workers``-th of what a sampler gives; what is left over at the end is dropped.

    The sampler must give the same on all workers.
    """

    def __init__(self, sampler: Any, rank: int, workers: int) -> None:
        self._sampler, self._rank, self._workers = sampler, rank, workers

    def __len__(self) -> int:
        return len(self._sampler) // self._workers

    def __iter__(self) -> Iterator[Any]:
        return islice(self._sampler, self._rank, len(self) * self._workers, self._workers)


def shard(loader: "DataLoader[Any]", rank: int, workers: int, seed: int) -> "DataLoader[Any]":
    """A loader of this worker's part: samples are dealt, or whole batches where the loader has a batch sampler.

    A random order becomes that of ``seed``, which is the same on all workers. One worker has the loader itself, and so
    has one whose loader has a DistributedSampler.
    """
    if workers == 1 or isinstance(loader.sampler, DistributedSampler):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"{type(loader.dataset).__name__} is an IterableDataset, whose samples cannot be dealt by number; have it "
            "give each worker its own by worker.rank and worker.workers, and use the loader without shard()"
        )
    common: dict[str, Any] = {
        name: getattr(loader, name)
        for name in (
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "prefetch_factor",
            "persistent_workers",
        )
    }
    if type(loader.batch_sampler) is not BatchSampler and loader.batch_sampler is not None:
        dealt = DealtSampler(loader.batch_sampler, rank, workers)
        made = DataLoader(loader.dataset, batch_sampler=dealt, **common)
    else:
        dealt = DealtSampler(_ordered(loader.sampler, seed), rank, workers)
        size, last = loader.batch_size, loader.drop_last
        made = DataLoader(loader.dataset, size, sampler=dealt, drop_last=last, **common)
    if not len(made):
        raise UsageError(
            f"a loader of {len(loader)} batches is too short for {workers} workers, each of which needs one; use fewer "
            "workers, or a smaller batch"
        )
    return made


def _ordered(sampler: Any, seed: int) -> Any:
    if type(sampler) is not RandomSampler:
        return sampler
    generator = torch.Generator().manual_seed(seed)
    return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator)

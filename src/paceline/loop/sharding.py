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


class DealtStream(IterableDataset[Any]):
    """Every ``workers``-th sample of a stream; what is left over at its end is dropped.

    The stream must give the same on all workers. Where several processes load parts of it, each deals its own.
    """

    def __init__(self, stream: IterableDataset[Any], rank: int, workers: int) -> None:
        self._stream, self._rank, self._workers = stream, rank, workers

    def __len__(self) -> int:
        return len(self._stream) // self._workers  # type: ignore[arg-type]  # a stream may have a length

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self._stream)
        while len(group := list(islice(samples, self._workers))) == self._workers:
            yield group[self._rank]


def shard(loader: "DataLoader[Any]", rank: int, workers: int, order: torch.Generator) -> "DataLoader[Any]":
    """A loader of this worker's part: samples are dealt, or whole batches where the loader has a batch sampler.

    A random order is drawn from ``order``, which is the same on all workers. One worker has the loader itself, and so
    has one whose loader has a DistributedSampler. Of a stream, every worker reads all and keeps its part.
    """
    if workers == 1 or isinstance(loader.sampler, DistributedSampler):
        return loader
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
    if isinstance(loader.dataset, IterableDataset):
        stream = DealtStream(loader.dataset, rank, workers)
        return DataLoader(stream, loader.batch_size, drop_last=loader.drop_last, **common)
    if type(loader.batch_sampler) is not BatchSampler and loader.batch_sampler is not None:
        dealt = DealtSampler(loader.batch_sampler, rank, workers)
        made = DataLoader(loader.dataset, batch_sampler=dealt, **common)
    else:
        dealt = DealtSampler(_ordered(loader.sampler, order), rank, workers)
        size, last = loader.batch_size, loader.drop_last
        made = DataLoader(loader.dataset, size, sampler=dealt, drop_last=last, **common)
    if not len(made):
        raise UsageError(
            f"a loader of {len(loader)} batches is too short for {workers} workers, each of which needs one; use fewer "
            "workers, or a smaller batch"
        )
    return made


def _ordered(sampler: Any, order: torch.Generator) -> Any:
    if type(sampler) is not RandomSampler:
        return sampler
    return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, order)

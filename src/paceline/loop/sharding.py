"""A loader's samples, dealt out to the workers: all get equally many, so that all take equally many steps."""

from collections.abc import Iterator
from copy import copy
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler
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


KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
"""What a worker's loader has in common with the one that is dealt."""


def shard(loader: "DataLoader[Any]", rank: int, workers: int, order: torch.Generator) -> "DataLoader[Any]":
    """A loader of this worker's part: samples are dealt, or whole batches where the loader was given a batch sampler.

    A random order is drawn from ``order``, which is the same on all workers. One worker has the loader itself, and so
    has one whose samples a DistributedSampler deals. Of a stream, every worker reads all and keeps its part.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"worker.shard() is given a {type(loader).__name__}, and it deals the samples of a "
            "torch.utils.data.DataLoader; give it that, or divide the data yourself by worker.rank and worker.workers"
        )
    batches = loader.batch_sampler if loader.batch_size is None else None
    """As given by the user, instead of samples that the loader puts into batches itself."""
    dealer = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    if workers == 1 or isinstance(dealer, DistributedSampler):
        return loader
    common: dict[str, Any] = {name: getattr(loader, name) for name in KEPT}
    size, last = loader.batch_size, loader.drop_last
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(DealtStream(loader.dataset, rank, workers), size, drop_last=last, **common)
    dealt = DealtSampler(_ordered(loader.sampler if batches is None else batches, order), rank, workers)
    if batches is not None:
        made = DataLoader(loader.dataset, batch_sampler=dealt, **common)
    else:
        made = DataLoader(loader.dataset, size, sampler=dealt, drop_last=last, **common)
    if not len(made):
        raise UsageError(
            f"a loader of {len(loader)} batches is too short for {workers} workers, each of which needs one; use fewer "
            "workers, or a smaller batch"
        )
    return made


def _ordered(sampler: Any, order: torch.Generator) -> Any:
    """The same sampler with a random order that is drawn from ``order``; the user's object stays as it is.

    One with ``set_epoch``, or with a generator of its own, draws its order itself: the same on all workers, as one that
    is not random does. A RandomSampler's generator may be what the loader was given for its processes.
    """
    if not hasattr(sampler, "__len__"):
        raise UsageError(
            f"the length of the {type(sampler).__name__} is not known, so that samples cannot be dealt evenly; give it "
            "a __len__, or divide its samples by worker.rank and put the loop in 'with worker.join():'"
        )
    if hasattr(sampler, "set_epoch"):
        return sampler
    made = copy(sampler)
    if isinstance(sampler, RandomSampler) or getattr(sampler, "generator", order) is None:
        made.generator = order
    if isinstance(inner := getattr(sampler, "sampler", None), Sampler):
        made.sampler = _ordered(inner, order)
    return made

"""Whatever deals a loader's samples, each sample goes to one worker, in an order that all workers share."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import UsageError
from paceline.loop.sharding import shard

DATA: Any = torch.arange(24)
WORKERS = 3


def parts_of(make: Callable[[], "DataLoader[Any]"]) -> list["DataLoader[Any]"]:
    """Each rank makes its loader by itself, and not all have drawn equally many random numbers before."""
    found = []
    for rank in range(WORKERS):
        torch.manual_seed(rank)
        found.append(shard(make(), rank, WORKERS, torch.Generator().manual_seed(5)))
    return found


def samples_of(parts: list["DataLoader[Any]"]) -> list[list[int]]:
    return [torch.cat([*one]).tolist() for one in parts]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, 2, shuffle=True),
        lambda: DataLoader(DATA, 2, sampler=SubsetRandomSampler(range(24))),
        lambda: DataLoader(DATA, 2, sampler=WeightedRandomSampler([1.0] * 24, 24, replacement=False)),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, drop_last=True)),
        lambda: DataLoader(DATA, None, sampler=BatchSampler(SubsetRandomSampler(range(24)), 2, True)),
        lambda: DataLoader(DATA, 2, shuffle=True, generator=torch.Generator()),
    ],
)
def test_each_sample_goes_to_one_worker_in_a_random_order(make: Callable[[], "DataLoader[Any]"]) -> None:
    """If this failed, unseeded ranks would take positions of different orders: some samples twice, and others never."""
    parts = parts_of(make)
    dealt = samples_of(parts)
    assert [len(one) for one in dealt] == [8] * WORKERS
    assert sorted(chain(*dealt)) == list(range(24))
    assert dealt[0] != sorted(dealt[0])
    assert [len(one) for one in next(zip(*parts, strict=True))] == [2] * WORKERS
    assert samples_of(parts)[0] != dealt[0], "the next epoch has another order"


def test_batches_are_those_of_the_batch_sampler_that_was_given() -> None:
    """If this failed, weights and batches of a script would be replaced by single samples in order."""
    weights = WeightedRandomSampler([0.0] * 12 + [1.0] * 12, 600)
    parts = parts_of(lambda: DataLoader(DATA, batch_sampler=BatchSampler(weights, 10, drop_last=True)))
    for part in parts:
        assert [len(one) for one in part] == [10] * 20
        assert min(torch.cat([*part]).tolist()) >= 12


def test_a_sampler_that_orders_by_itself_does() -> None:
    """A generator with a seed, an order by epochs, a DistributedSampler, and no random order at all."""

    class ByEpoch(SequentialSampler):
        epoch, generator = 0, None

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([(one + self.epoch) % 24 for one in range(24)])

    own = ByEpoch(DATA)
    parts = parts_of(lambda: DataLoader(DATA, 2, sampler=own))
    own.set_epoch(3)
    assert samples_of(parts)[0][:2] == [3, 6]

    def seeded() -> SubsetRandomSampler:
        return SubsetRandomSampler(range(24), torch.Generator().manual_seed(1))

    dealt = samples_of(parts_of(lambda: DataLoader(DATA, 2, sampler=seeded())))
    assert dealt == [[*seeded()][rank::WORKERS] for rank in range(WORKERS)]
    by_torch = DistributedSampler(DATA, WORKERS, 0)
    for given in (
        DataLoader(DATA, 2, sampler=by_torch),
        DataLoader(DATA, batch_sampler=BatchSampler(by_torch, 2, drop_last=False)),
    ):
        assert shard(given, 0, WORKERS, torch.Generator()) is given


def test_a_loader_keeps_its_settings() -> None:
    generator = torch.Generator()
    made = DataLoader(DATA, 2, in_order=False, generator=generator, timeout=0, pin_memory_device="cpu")
    part = shard(made, 0, WORKERS, torch.Generator())
    assert (part.in_order, part.generator, part.pin_memory_device) == (False, generator, "cpu")


def test_what_cannot_be_dealt_is_refused() -> None:
    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(24))

    given: Any = [DATA]
    for workers in (1, WORKERS):
        with pytest.raises(UsageError, match=r"is given a list, .* torch\.utils\.data\.DataLoader"):
            shard(given, 0, workers, torch.Generator())
    for loader in (
        DataLoader(DATA, 2, sampler=Endless()),
        DataLoader(DATA, batch_sampler=BatchSampler(Endless(), 2, drop_last=True)),
    ):
        with pytest.raises(UsageError, match="length of the Endless is not known"):
            shard(loader, 0, WORKERS, torch.Generator())

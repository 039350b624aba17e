import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.jobs.sharding import Shards, mix_seed, permutation, scoring_batches


@st.composite
def shards(draw: st.DrawFn) -> Shards:
    sizes = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    samples = draw(st.integers(sum(sizes), sum(sizes) + 120))
    return Shards(samples=samples, batch_sizes=sizes, seed=draw(st.integers(0, 2**40)))


def epoch_of(some: Shards, epoch: int) -> list[list[int]]:
    """One list a step, the workers' parts in order."""
    first = epoch * some.steps_per_epoch
    return [
        [index for worker in range(len(some.batch_sizes)) for index in some.indices(worker, step).tolist()]
        for step in range(first, first + some.steps_per_epoch)
    ]


@given(shards(), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_visits_every_sample_exactly_once(some: Shards, epoch: int) -> None:
    visited = [index for step in epoch_of(some, epoch) for index in step]
    assert sorted(visited) == list(range(some.samples))


@given(shards(), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_many_workers_see_what_one_worker_of_the_whole_batch_sees(some: Shards, epoch: int) -> None:
    one = Shards(samples=some.samples, batch_sizes=(some.global_batch,), seed=some.seed)
    assert epoch_of(some, epoch) == epoch_of(one, epoch)


@given(shards(), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_sizes_are_those_of_the_indices_and_add_up(some: Shards, step: int) -> None:
    workers = range(len(some.batch_sizes))
    sizes = [some.size(worker, step) for worker in workers]
    assert sizes == [len(some.indices(worker, step)) for worker in workers]
    assert sum(sizes) == some.total(step)


@given(shards())
@settings(max_examples=60, deadline=None)
def test_samples_are_counted_in_the_steps_that_brought_them(some: Shards) -> None:
    """If this failed, runs that count progress in samples would end early or late, more so each epoch."""
    seen = 0
    for step in range(2 * some.steps_per_epoch):
        seen += some.total(step)
        assert some.steps_through(seen) == step + 1
        assert some.steps_through(seen - 1) == step


@given(shards())
@settings(max_examples=60, deadline=None)
def test_the_last_batch_is_split_in_proportion_to_within_one_sample(some: Shards) -> None:
    step = some.steps_per_epoch - 1
    rest = some.total(step)
    for worker, size in enumerate(some.batch_sizes):
        assert abs(some.size(worker, step) - rest * size / some.global_batch) < 1


def test_the_order_is_the_seeds_and_the_epochs_alone() -> None:
    orders = {
        (seed, epoch): tuple(Shards(samples=50, batch_sizes=(50,), seed=seed).indices(0, epoch).tolist())
        for seed in (1, 2, 2**33 + 1)
        for epoch in range(20)
    }
    assert len(set(orders.values())) == len(orders), "two epochs or two seeds share an order"
    again = Shards(samples=50, batch_sizes=(50,), seed=2)
    for epoch in reversed(range(20)):
        assert tuple(again.indices(0, epoch).tolist()) == orders[2, epoch], (
            "the order depends on what was asked before"
        )


def test_no_two_epochs_share_a_generator_seed() -> None:
    assert len({mix_seed(1, epoch) for epoch in range(50_000)}) == 50_000


def test_drawing_leaves_the_global_random_stream_alone() -> None:
    before = torch.get_rng_state()
    Shards(samples=10, batch_sizes=(3,), seed=4).indices(0, 7)
    assert torch.equal(before, torch.get_rng_state())


def test_a_batch_larger_than_the_data_is_a_mistake_that_names_both() -> None:
    with pytest.raises(
        UsageError, match=r"64 samples over all workers \(48 \+ 16\).*\(63 samples\).*smaller batch size"
    ):
        Shards(samples=63, batch_sizes=(48, 16), seed=1)
    Shards(samples=64, batch_sizes=(48, 16), seed=1)


def test_a_size_is_cheap_with_many_workers() -> None:
    some = Shards(samples=1_000_000, batch_sizes=(32,) * 10_000, seed=1)
    start = time.perf_counter()
    for step in range(20_000):
        some.size(9_999, step)
    assert time.perf_counter() - start < 0.5, "a size costs more than 25 us: it is no longer O(1)"


@given(st.integers(1, 5000), st.integers(1, 40))
def test_every_test_sample_is_scored_once_in_the_same_batches_however_many_workers(samples, workers):
    shared = [batch for worker in range(workers) for batch in scoring_batches(samples, worker, workers)]
    assert shared == scoring_batches(samples, 0, 1)
    assert [index for batch in shared for index in batch] == list(range(samples))


def test_who_joins_late_goes_through_all_samples_in_an_order_of_its_own() -> None:
    shards = Shards(samples=50, batch_sizes=(8, 6), seed=3)
    epochs = [
        torch.cat([shards.indices(worker, step) for step in range(first, first + steps)])
        for worker, first, steps in ((2, 0, 7), (2, 7, 7), (3, 0, 9))
    ]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(50))
    others = [permutation(50, 3, 0), permutation(50, 3, 1)]
    assert len({tuple(order.tolist()) for order in [*epochs, *others]}) == 5
    assert [shards.size(2, step) for step in range(7)] == [8] * 6 + [2]
    assert all(shards.size(3, step) == len(shards.indices(3, step)) for step in range(20))
    assert torch.equal(shards.indices(2, 3), Shards(samples=50, batch_sizes=(8, 6), seed=3).indices(2, 3))

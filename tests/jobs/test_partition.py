"""The division of the data among clients: if it were wrong, federated training would see samples twice or never."""

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from paceline.errors import UsageError
from paceline.jobs.data import DatasetData, DrawnData, TensorData
from paceline.jobs.partition import ClientBatch, Clients, Partition, check_labels, labels_of
from paceline.jobs.sharding import Shards

LABELS = 5


def clients_of(clients: int, samples: int, batch: int = 8, seed: int = 1, **partition) -> Clients:
    return Clients(
        partition=Partition(clients=clients, **partition),
        samples=samples,
        batch_sizes=(batch,),
        seed=seed,
        labels=lambda: torch.arange(samples) % LABELS,
    )


def epoch_of(some: Clients, client: int, epoch: int = 0) -> list[int]:
    batches = [ClientBatch(client, epoch, place) for place in range(some.batches(client, 0))]
    parts = [some.indices(batch, 0).tolist() for batch in batches]
    assert [len(part) for part in parts] == [some.size(batch, 0) for batch in batches]
    return [index for part in parts for index in part]


@st.composite
def divisions(draw: st.DrawFn) -> Clients:
    many = draw(st.integers(1, 30))
    return clients_of(
        many,
        draw(st.integers(many, many + 150)),
        batch=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 2**40)),
        alpha=draw(st.sampled_from([1e-4, 0.1, 1.0, 100.0, inf])),
        uneven=draw(st.sampled_from([0.0, 0.5, 3.0, 400.0])),
    )


@given(divisions(), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_every_sample_belongs_to_one_client_and_every_client_has_one(some: Clients, epoch: int) -> None:
    assert min(some.sizes) >= 1
    visited = [epoch_of(some, client, epoch) for client in range(len(some.sizes))]
    assert [len(one) for one in visited] == list(some.sizes)
    assert sorted(index for one in visited for index in one) == list(range(some.samples))


@given(divisions())
@settings(max_examples=30, deadline=None)
def test_even_sizes_differ_by_one_sample_at_most(some: Clients) -> None:
    even = clients_of(len(some.sizes), some.samples)
    assert max(even.sizes) - min(even.sizes) <= 1


def test_the_division_and_the_orders_are_the_seeds_alone() -> None:
    one, again, other = (clients_of(6, 90, seed=seed, alpha=0.5, uneven=1.0) for seed in (7, 7, 8))
    assert one.sizes == again.sizes != other.sizes
    assert epoch_of(one, 3, 4) == epoch_of(again, 3, 4)
    assert epoch_of(one, 3, 4) != epoch_of(one, 3, 5), "every local epoch has an order of its own"
    assert sorted(epoch_of(one, 3, 4)) == sorted(epoch_of(one, 3, 5))
    even = clients_of(9, 90)
    orders = [np.argsort(epoch_of(even, client)).tolist() for client in range(9)]
    assert len(set(map(tuple, orders))) == 9, "clients share an order"


def test_one_client_has_the_batches_of_a_run_without_clients() -> None:
    shards, alone = Shards(samples=50, batch_sizes=(8,), seed=3), clients_of(1, 50, seed=3)
    for step in range(2 * shards.steps_per_epoch):
        epoch, place = divmod(step, shards.steps_per_epoch)
        assert torch.equal(shards.indices(0, step), alone.indices(ClientBatch(0, epoch, place), 0))


def label_shares(alpha: float) -> float:
    """The share of a client's most frequent label, on average."""
    some = clients_of(20, 2000, alpha=alpha)
    counts = [np.bincount(np.array(epoch_of(some, client)) % LABELS) for client in range(20)]
    return float(np.mean([count.max() / count.sum() for count in counts]))


def test_less_alpha_makes_clients_more_unlike_each_other() -> None:
    shares = [label_shares(alpha) for alpha in (0.01, 0.1, 1.0, 100.0, inf)]
    assert shares[0] > 0.85
    assert shares == sorted(shares, reverse=True)
    assert shares[-2] < shares[-1] + 0.05 < 0.35


def test_uneven_sizes_spread_as_a_lognormal() -> None:
    logs = np.log(clients_of(2000, 10**6, uneven=0.5).sizes)
    assert 0.45 < logs.std() < 0.55
    assert clients_of(3, 10, uneven=50.0).sizes == (1, 1, 8) or max(clients_of(3, 10, uneven=50.0).sizes) == 8


def test_sizes_need_no_labels_and_labels_are_asked_for_once() -> None:
    asked = []

    def labels() -> torch.Tensor:
        asked.append(1)
        return torch.zeros(40, dtype=torch.int64)

    some = Clients(
        partition=Partition(clients=4, alpha=0.1), samples=40, batch_sizes=(8,), seed=1, labels=labels
    )
    assert some.sizes == (10, 10, 10, 10)
    assert some.batches(0, 0) == 2
    assert not asked
    some.indices(ClientBatch(0, 0, 0), 0)
    some.indices(ClientBatch(1, 0, 0), 0)
    assert asked == [1]


def test_more_clients_than_samples_are_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"11 clients cannot share 10 training samples.*fewer clients"):
        clients_of(11, 10)
    assert clients_of(10, 10).sizes == (1,) * 10


class Squares(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_labels_come_from_targets_and_are_asked_for_by_a_sentence() -> None:
    squares = Squares()
    with pytest.raises(UsageError, match=r"alpha=0\.1.*job 'mine' has no 'targets'.*attribute targets"):
        check_labels(DatasetData(squares), "mine", 0.1)
    squares.targets = [0, 1, 0, 1]  # a list, as torchvision has it
    check_labels(DatasetData(squares), "mine", 0.1)
    assert labels_of(DatasetData(squares), "mine", 0.1).tolist() == [0, 1, 0, 1]
    heights = TensorData(torch.zeros(3, 2), torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(UsageError, match=r"float32 of shape \[3\].*one whole number for each sample"):
        labels_of(heights, "heights", 0.1)
    squares.targets = ["cat", "dog", "cat", "dog"]
    with pytest.raises(
        UsageError, match=r"targets of job 'mine' are a list of 4; they must be one whole number"
    ):
        labels_of(DatasetData(squares), "mine", 0.1)
    drawn = DrawnData(2, (1,), lambda: pytest.fail("data was drawn to see whether it has labels"))
    check_labels(drawn, "synthetic", 0.1)

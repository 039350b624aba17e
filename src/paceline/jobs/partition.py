"""How the training data is divided among the clients of federated training; pure arithmetic on the seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import UsageError
from paceline.jobs.batches import describe
from paceline.jobs.data import IN_MEMORY
from paceline.jobs.job import Data
from paceline.jobs.sharding import mix_seed, permutation

_SIZES, _MEMBERS, _ROUNDS = range(3)
"""What is drawn: each has random numbers of its own."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How many clients share the training data, and how unlike each other they are. A strategy says it."""

    clients: int = 0
    """0: the data is not divided, and every worker draws from all of it."""
    alpha: float = inf
    """Concentration, for each label, of the Dirichlet distribution that a client's mix of labels is drawn from.

    Less makes clients more unlike each other; inf shuffles all samples and needs no labels.
    """
    uneven: float = 0.0
    """Standard deviation of the logarithm of the clients' sizes; 0: all have the same number, to within one sample."""


UNDIVIDED = Partition()


@dataclass(frozen=True, slots=True)
class ClientBatch:
    """One mini-batch of one client."""

    client: int
    epoch: int
    """The number of the local epoch, counted over all rounds; each goes through the samples in another order."""
    place: int
    """The number of the mini-batch in its epoch."""


def _no_labels() -> Tensor:
    raise AssertionError("what has no data needs no labels")


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """The clients of one run: which samples each has, and which of them are in each of its mini-batches.

    Every sample belongs to exactly one client, and every client has at least one. The sizes depend on the seed alone,
    and who has which sample is worked out when the first mini-batch is asked for: neither time nor prediction needs
    data. A mini-batch is as large as those of the worker that trains the client.
    """

    partition: Partition
    samples: int
    batch_sizes: tuple[int, ...]
    """One a worker."""
    seed: int
    labels: Callable[[], Tensor] = _no_labels
    """The label of each sample; called once, where the partition goes by labels."""

    def __post_init__(self) -> None:
        if self.partition.clients > self.samples:
            raise UsageError(
                f"{self.partition.clients:,} clients cannot share {self.samples:,} training samples: each needs at "
                "least one; choose fewer clients"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each client."""
        many, uneven = self.partition.clients, self.partition.uneven
        if not uneven:
            return tuple(self.samples * (one + 1) // many - self.samples * one // many for one in range(many))
        logs = uneven * self._generator(_SIZES).standard_normal(many)
        weights = np.exp(logs - logs.max())
        shares = (self.samples - many) * weights / weights.sum()
        sizes = 1 + np.floor(shares).astype(np.int64)
        rest = np.argsort(np.floor(shares) - shares, kind="stable")[: self.samples - int(sizes.sum())]
        sizes[rest] += 1
        return tuple(sizes.tolist())

    def batches(self, client: int, worker: int) -> int:
        """Mini-batches of one local epoch."""
        return -(-self.sizes[client] // self.batch_sizes[worker])

    def size(self, batch: ClientBatch, worker: int) -> int:
        most = self.batch_sizes[worker]
        return min(most, self.sizes[batch.client] - batch.place * most)

    def indices(self, batch: ClientBatch, worker: int) -> Tensor:
        client, most = batch.client, self.batch_sizes[worker]
        # Client 0 has the seed of a run without clients, so that one client has the batches of such a run.
        seed = mix_seed(self.seed, -client) if client else self.seed
        order = permutation(self.sizes[client], seed, batch.epoch)
        return self._members[client][order[batch.place * most : (batch.place + 1) * most]]

    def draws(self, number: int) -> np.random.Generator:
        """Random numbers for a round, the same on all workers."""
        return self._generator(_ROUNDS, number)

    def _generator(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what])

    @cached_property
    def _members(self) -> list[Tensor]:
        """The samples of each client, in ascending order."""
        generator = self._generator(_MEMBERS)
        if self.partition.alpha < inf:
            labels = self.labels().numpy()
            found = _divide_by_labels(labels, self.sizes, self.partition.alpha, generator)
        else:
            cuts = np.cumsum(self.sizes)[:-1]
            found = np.split(generator.permutation(self.samples), cuts)
        return [torch.from_numpy(np.sort(one)) for one in found]


NO_CLIENTS = Clients(partition=UNDIVIDED, samples=0, batch_sizes=(1,), seed=0)


def _divide_by_labels(
    labels: NDArray[Any], sizes: Sequence[int], alpha: float, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Each client draws its mix of labels, and its samples by it while there are any (Hsu et al., 2019).

    The clients take turns in a random order, for the last ones get what is left.
    """
    _, codes = np.unique(labels, return_inverse=True)
    classes = int(codes.max()) + 1
    pools = [generator.permutation(np.flatnonzero(codes == code)) for code in range(classes)]
    mixes = generator.dirichlet(np.full(classes, alpha), size=len(sizes))
    found: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * len(sizes)
    for client in generator.permutation(len(sizes)):
        left = np.array([len(pool) for pool in pools])
        taken = _draw_counts(mixes[client], sizes[client], left, generator)
        found[client] = np.concatenate([pool[:many] for pool, many in zip(pools, taken, strict=True)])
        pools = [pool[many:] for pool, many in zip(pools, taken, strict=True)]
    return found


def _draw_counts(
    mix: NDArray[np.float64], size: int, left: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """How many samples of each label; where a label runs out, the others take its place in their proportions."""
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        weights = np.where(counts < left, mix, 0.0)
        if not weights.sum() > 0:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + generator.multinomial(missing, weights / weights.sum()), left)
    return counts


def check_labels(data: Data, job: str, alpha: float) -> None:
    """Refuse data without a label for each sample; data that is drawn when needed is not drawn for this."""
    if isinstance(data, IN_MEMORY) or hasattr(data, "targets"):
        return
    raise UsageError(
        f"alpha={alpha:g} divides samples by their labels, and the training data of job {job!r} has no 'targets'; give "
        "its data set an attribute targets, one label for each sample, or leave alpha out"
    )


def labels_of(data: Data, job: str, alpha: float) -> Tensor:
    """One whole number for each sample."""
    targets = data.targets  # type: ignore[attr-defined]
    try:
        labels = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        found = describe(targets)
    else:
        if labels.shape == (len(data),) and not labels.is_floating_point():
            return labels
        found = f"{labels.dtype} of shape {list(labels.shape)}"
    raise UsageError(
        f"alpha={alpha:g} divides samples by their labels, and the targets of job {job!r} are {found}; they must be "
        "one whole number for each sample, or leave alpha out"
    )

"""Federated averaging: workers stand for the clients that are drawn for a round, and average what these have learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from math import inf
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.jobs.partition import ClientBatch, Clients, Partition
from paceline.specs.ranges import AtLeastOne, Fraction, NotNegative, Positive, Range, at_least
from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import AllReduce, Apply, Gradient, Program

ROUND, AVERAGE, VELOCITY = "fedavg.round", "fedavg.average", "fedavg.velocity"


class Participant(NamedTuple):
    """A client that was drawn for a round."""

    client: int
    drops_out: bool


@dataclass(frozen=True, kw_only=True)
class FederatedAveraging(Strategy):
    """Clients train the global model on data of their own; each round averages some of them (McMahan et al., 2017)."""

    clients: Annotated[int, at_least(0)] = 0
    """How many share the data; more have less each. 0 is one for each worker."""
    sample: Annotated[int, at_least(0)] = 0
    """Clients drawn for each round, at least one for each worker; fewer make rounds shorter and noisier. 0 is all."""
    epochs: AtLeastOne = 1
    """Passes of a client over its own data in a round; more means less traffic and more drift."""
    alpha: Annotated[float, Range("more than 0", lambda value: value > 0)] = inf
    """Concentration of the Dirichlet distribution of labels; less makes clients more unlike each other, inf alike."""
    uneven: NotNegative = 0.0
    """Deviation of the logarithm of the clients' sizes; more is more uneven, 0 is even."""
    momentum: Fraction = 0.0
    """Of the rounds' updates (FedAvgM, Hsu et al., 2019); more smooths out which clients were drawn."""
    server_lr: Positive = 1.0
    """Learning rate of the rounds' updates; 1 takes over the clients' average."""
    proximal: NotNegative = 0.0
    """Pull of a client towards the global model (FedProx, Li et al., 2020); more means less drift and smaller steps."""
    dropout: Fraction = 0.0
    """Probability that a client drops out of its round: its time is spent, its update lost; one always stays."""
    sync_point = SyncPoint.AFTER_ROUND

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample > self.clients:
            raise UsageError(
                f"sample={self.sample} of clients={self.clients} cannot be drawn for a round; choose a smaller sample, "
                f"or at least clients={self.sample}"
            )

    @property
    def most_workers(self) -> float:
        """Each stands for at least one client of a round."""
        return self.sample or self.clients or inf

    def partition(self, workers: int) -> Partition:
        return Partition(clients=self.clients or workers, alpha=self.alpha, uneven=self.uneven)

    def worker(self, me: Worker) -> Program:
        number = me.state.setdefault(ROUND, torch.zeros(1, dtype=torch.int64))
        while True:
            start, buffers = me.params.clone(), me.buffers.clone()
            params, statistics = start.new_zeros(start.shape), buffers.new_zeros(buffers.shape)
            drawn = deal(me.clients, self.sample, self.dropout, me.workers, int(number))[me.rank]
            kept = sum(me.clients.sizes[one.client] for one in drawn if not one.drops_out)
            for client, drops_out in drawn:
                me.params.copy_(start)
                me.buffers.copy_(buffers)
                yield from self._train(me, client, int(number), start)
                if not drops_out:
                    share = me.clients.sizes[client] / kept
                    params.add_(me.params, alpha=share)
                    statistics.add_(me.buffers, alpha=share)
            me.params.copy_(params if kept else start)
            me.buffers.copy_(statistics if kept else buffers)
            yield from self._average(me, start, kept * self.epochs)
            number += 1

    def _train(self, me: Worker, client: int, number: int, start: Tensor) -> Program:
        """The local epochs of a client, which keeps nothing from the last time it was drawn."""
        fresh = True
        for epoch in range(number * self.epochs, (number + 1) * self.epochs):
            for place in range(me.clients.batches(client, me.rank)):
                yield Gradient(batch=ClientBatch(client, epoch, place))
                if self.proximal:
                    me.grad.add_(me.params - start, alpha=self.proximal)
                yield Apply(fresh=fresh)
                fresh = False

    def _average(self, me: Worker, start: Tensor, weight: int) -> Program:
        """The mean over all clients that did not drop out, and the server's step from ``start`` towards it.

        All workers make the same step. A codec encodes the difference from what the last exchange left everywhere, so
        where the server's step went elsewhere from there, that is taken out before and put back afterwards.
        """
        if me.buffers.numel():
            yield AllReduce(me.buffers, weight=weight)
        if not self.momentum and self.server_lr == 1:
            yield AllReduce(me.params, weight=weight)
            return
        last = me.state.setdefault(AVERAGE, start.clone())
        velocity = me.state.setdefault(VELOCITY, start.new_zeros(start.shape))
        me.params.sub_(start).add_(last)
        yield AllReduce(me.params, weight=weight)
        velocity.mul_(self.momentum).add_(last).sub_(me.params)
        last.copy_(me.params)
        me.params.copy_(start).sub_(velocity, alpha=self.server_lr)

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params  # after a round all workers hold the global model


# All workers of a simulation ask for the same round.
@lru_cache(maxsize=4)
def deal(
    clients: Clients, sample: int, dropout: float, workers: int, number: int
) -> Sequence[Sequence[Participant]]:
    """The clients of a round for each worker, the largest first: each goes to whoever has the fewest samples so far."""
    sizes, generator = clients.sizes, clients.draws(number)
    drawn = generator.choice(len(sizes), sample or len(sizes), replace=False)
    drops = generator.random(len(drawn)) < dropout
    drops[0] &= not drops.all()
    pairs = sorted(zip(drawn.tolist(), drops.tolist(), strict=True), key=lambda one: (-sizes[one[0]], one[0]))
    dealt: list[list[Participant]] = [[] for _ in range(workers)]
    loads = [(0, rank) for rank in range(workers)]
    heapify(loads)
    for client, drops_out in pairs:
        load, rank = loads[0]
        dealt[rank].append(Participant(client, drops_out))
        heapreplace(loads, (load + sizes[client], rank))
    return dealt

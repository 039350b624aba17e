"""The mathematics of a simulated run: true, on one replica a worker, or none at all."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.runtimes.replica import ParameterShard, Replica
from paceline.runtimes.session import Session
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.weightless import weightless
from paceline.strategies.base import Server, Worker, server_slices


class Compute(Protocol):
    """What effects do to numbers; how long they take is somebody else's matter."""

    def worker(self, rank: int) -> Worker:
        """A worker's own tensors."""

    def server(self, rank: int) -> Server:
        """A server's own tensors: its part of the model that every worker starts with."""

    def gradient(self, rank: int, step: int, samples: int, shared: bool) -> None:
        """Leave the gradient of the worker's mini-batch in its ``grad``.

        Where it is ``shared``, scaled so that all workers' add up to the mean over their samples.
        """

    def sum_gradients(self) -> None:
        """Every worker's gradient becomes the sum over all, added in rank order."""

    def reduce(self, tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
        """Every tensor becomes the weighted mean or the sum, added in rank order."""

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        """Every tensor becomes the root's."""

    def apply(self, rank: int, session: Session, rate: float) -> None:
        """The optimizer's step, at ``rate`` times the learning rate of where the session stands."""

    def update(self, rank: int, epoch: float, rate: float) -> None:
        """A server's step on its part, at ``rate`` times the learning rate of an epoch."""

    def evaluate(self, rank: int, params: Tensor, buffers: Tensor, share: tuple[int, int]) -> Tensor:
        """The worker's sums over its share of the test data: which one, and of how many."""

    def export(self, rank: int, params: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:
        """The model's state by name."""

    def copy(self, message: Any) -> Any:
        """The message as it is now, whatever the sender does later."""

    @property
    def loss(self) -> float:
        """Worker 0's last loss; not a number where there is none."""


class NoCompute:
    """No mathematics: all workers share tensors that have a size and no memory."""

    loss = float("nan")

    def __init__(self, shape: JobShape, workers: int, servers: int = 0) -> None:
        self._workers, self._servers = workers, servers
        self._vector = weightless(shape.size, shape.dtype)
        self._buffers = weightless(shape.buffers)

    def worker(self, rank: int) -> Worker:
        """A worker without weights."""
        return Worker(rank, self._workers, self._vector, self._vector, self._buffers, servers=self._servers)

    def server(self, rank: int) -> Server:
        """A server without weights."""
        part = server_slices(self._vector, self._servers)[rank]
        return Server(rank, self._servers, part, part)

    def gradient(self, rank: int, step: int, samples: int, shared: bool) -> None:
        """Do nothing."""

    def sum_gradients(self) -> None:
        """Do nothing."""

    def reduce(self, tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
        """Do nothing."""

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        """Do nothing."""

    def apply(self, rank: int, session: Session, rate: float) -> None:
        """Do nothing."""

    def update(self, rank: int, epoch: float, rate: float) -> None:
        """Do nothing."""

    def evaluate(self, rank: int, params: Tensor, buffers: Tensor, share: tuple[int, int]) -> Tensor:  # noqa: ARG002
        """Never asked for: nothing is evaluated without weights."""
        raise AssertionError("evaluation needs gradients")

    def export(self, rank: int, params: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:  # noqa: ARG002
        """There is no model to keep."""
        return {}

    def copy(self, message: Any) -> Any:
        """Without numbers there is nothing that a sender could change."""
        return message


class RealCompute:
    """One replica a worker, each with its own random stream, in one process."""

    def __init__(self, job: Job, shards: Shards, workers: int, seed: int, servers: int = 0) -> None:
        device = torch.device("cpu")
        job = dataclasses.replace(
            job, loader_workers=0
        )  # they change no result, and nobody waits for them here
        self._replicas = [Replica(job, shards, rank, seed, device) for rank in range(workers)]
        self._grads = [replica.flat.grad for replica in self._replicas]
        self._parts = [ParameterShard(job, rank, servers, seed, device) for rank in range(servers)]
        self.loss = float("nan")

    def worker(self, rank: int) -> Worker:
        """The memory that the worker's model itself uses."""
        replica, workers = self._replicas[rank], len(self._replicas)
        return Worker(
            rank,
            workers,
            replica.flat.params,
            self._grads[rank],
            replica.buffers,
            servers=len(self._parts),
        )

    def server(self, rank: int) -> Server:
        """The memory of the server's part."""
        part = self._parts[rank]
        return Server(rank, len(self._parts), part.params, part.grad)

    def gradient(self, rank: int, step: int, samples: int, shared: bool) -> None:
        replica = self._replicas[rank]
        share = samples / replica.shards.total(step) if shared else 1.0
        with replica.randomness():
            loss = replica.gradient(step, share)
        if rank == 0 and samples:
            self.loss = loss

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Add up in the first worker's memory, then copy."""
        self._sum_into_first(self._grads)

    @torch.no_grad()
    def reduce(self, tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
        """Weigh, add up, divide: in the live runtime's order, so that both agree to the last bit."""
        if len(tensors) == 1:
            return
        if op == "mean":
            for tensor, weight in zip(tensors, weights, strict=True):
                tensor.mul_(weight)
        self._sum_into_first(tensors, sum(weights) if op == "mean" else 1.0)

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        """Copy the root's."""
        for rank, tensor in enumerate(tensors):
            if rank != root:
                tensor.copy_(tensors[root])

    def apply(self, rank: int, session: Session, rate: float) -> None:
        """The replica's own."""
        self._replicas[rank].apply(session.agenda.epoch(session.position.progress), rate)

    def update(self, rank: int, epoch: float, rate: float) -> None:
        """The part's own."""
        self._parts[rank].apply(epoch, rate)

    def evaluate(self, rank: int, params: Tensor, buffers: Tensor, share: tuple[int, int]) -> Tensor:
        """The worker's share of the test data."""
        return self._replicas[rank].evaluate(params, buffers, *share)

    def export(self, rank: int, params: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:
        """The replica's own, with these parameters."""
        return self._replicas[rank].export(params, buffers)

    def copy(self, message: Any) -> Any:
        """Copy the tensors; the rest cannot change."""
        tensors = {
            field.name: value.clone()
            for field in dataclasses.fields(message)
            if isinstance(value := getattr(message, field.name), Tensor)
        }
        return dataclasses.replace(message, **tensors) if tensors else message

    def learning_rate(self, epoch: float) -> float:
        """The first group's rate at an epoch."""
        return self._replicas[0].learning_rate(epoch)

    @staticmethod
    def _sum_into_first(tensors: Sequence[Tensor], divide_by: float = 1.0) -> None:
        first, *others = tensors
        for tensor in others:
            first.add_(tensor)
        if divide_by != 1.0:
            first.div_(divide_by)
        for tensor in others:
            tensor.copy_(first)

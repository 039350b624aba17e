"""What effects do to numbers: nothing where only time is simulated, or real gradients on one replica a worker."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self

import torch
from torch import Tensor

from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.runtimes.replica import ParameterShard, Replica
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.base import Server, Worker, server_slices


class NoCompute:
    """Time only: all workers share tensors that have a size and no memory."""

    loss = float("nan")
    """Worker 0's last loss; not a number where there is none."""

    def __init__(self, shape: JobShape, workers: int, servers: int = 0) -> None:
        self._workers, self._servers = workers, servers
        self._vector = sizes_only(shape.size, shape.dtype)
        self._buffers = sizes_only(shape.buffers)

    def worker(self, rank: int) -> Worker:
        return Worker(rank, self._workers, self._vector, self._vector, self._buffers, servers=self._servers)

    def server(self, rank: int) -> Server:
        part = server_slices(self._vector, self._servers)[rank]
        return Server(rank, self._servers, part, part)

    def gradient(self, rank: int, step: int, samples: int, shared: bool) -> None:
        """Leave the gradient of the worker's mini-batch in its ``grad``.

        Where it is ``shared``, scaled so that all workers' add up to the mean over their samples.
        """

    def sum_gradients(self) -> None:
        """Every worker's gradient becomes the sum over all, added in rank order."""

    def reduce(self, tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
        """Every tensor becomes the weighted mean or the sum, added in rank order."""

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> None: ...

    def apply(self, rank: int, epoch: float, rate: float) -> None:
        """Take a worker's optimizer step, at ``rate`` times the learning rate of an epoch."""

    def update(self, rank: int, epoch: float, rate: float) -> None: ...

    def evaluate(self, rank: int, params: Tensor, buffers: Tensor, share: tuple[int, int]) -> Tensor:  # noqa: ARG002
        """The worker's sums over its share of the test data, as (which one, of how many)."""
        raise AssertionError("evaluation needs gradients")

    def export(self, rank: int, params: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:  # noqa: ARG002
        return {}

    def copy(self, message: Any) -> Any:
        """The message as it is now: its sender may change its tensors later."""
        return message

    def learning_rate(self, epoch: float) -> float:  # noqa: ARG002
        return 1.0


class RealCompute(NoCompute):
    """One replica a worker, each with its own random stream, in one process."""

    def __init__(self, job: Job, shards: Shards, workers: int, seed: int, servers: int = 0) -> None:
        device = torch.device("cpu")
        job = dataclasses.replace(job, loader_workers=0)  # they change no result
        self._replicas = [Replica(job, shards, rank, seed, device) for rank in range(workers)]
        self._grads = [replica.flat.grad for replica in self._replicas]
        self._parts = [ParameterShard(job, rank, servers, seed, device) for rank in range(servers)]

    def worker(self, rank: int) -> Worker:
        replica, servers = self._replicas[rank], len(self._parts)
        params, grad, workers = replica.flat.params, self._grads[rank], len(self._replicas)
        return Worker(rank, workers, params, grad, replica.buffers, servers=servers)

    def server(self, rank: int) -> Server:
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
        _sum_into_all(self._grads)

    @torch.no_grad()
    def reduce(self, tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
        """Weigh, add up, divide: in the live runtime's order, so that both agree to the last bit."""
        if len(tensors) == 1:
            return
        if op == "mean":
            for tensor, weight in zip(tensors, weights, strict=True):
                tensor.mul_(weight)
        _sum_into_all(tensors, sum(weights) if op == "mean" else 1.0)

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        for rank, tensor in enumerate(tensors):
            if rank != root:
                tensor.copy_(tensors[root])

    def apply(self, rank: int, epoch: float, rate: float) -> None:
        self._replicas[rank].apply(epoch, rate)

    def update(self, rank: int, epoch: float, rate: float) -> None:
        self._parts[rank].apply(epoch, rate)

    def evaluate(self, rank: int, params: Tensor, buffers: Tensor, share: tuple[int, int]) -> Tensor:
        return self._replicas[rank].evaluate(params, buffers, *share)

    def export(self, rank: int, params: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:
        return self._replicas[rank].export(params, buffers)

    def copy(self, message: Any) -> Any:
        tensors = {
            field.name: value.clone()
            for field in dataclasses.fields(message)
            if isinstance(value := getattr(message, field.name), Tensor)
        }
        return dataclasses.replace(message, **tensors) if tensors else message

    def learning_rate(self, epoch: float) -> float:
        return self._replicas[0].learning_rate(epoch)


def _sum_into_all(tensors: Sequence[Tensor], divide_by: float = 1.0) -> None:
    first, *others = tensors
    for tensor in others:
        first.add_(tensor)
    if divide_by != 1.0:
        first.div_(divide_by)
    for tensor in others:
        tensor.copy_(first)


class SizeOnlyTensor(Tensor):
    """A vector on torch's meta device with which strategies compute at no cost.

    Torch infers the shape of every result anew, in Python; here it is known that no result is looked at.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def _unchanged(self, *_: Any, **__: Any) -> Self:
        return self

    add_ = sub_ = mul_ = div_ = zero_ = copy_ = _unchanged

    def clone(self, *_: Any, **__: Any) -> Tensor:
        """Another object: what is sent is told apart by identity."""
        return sizes_only(self.numel(), self.dtype)

    def tensor_split(self, sections: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _split(self.numel(), self.dtype, sections)


def sizes_only(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(elements, dtype=dtype, device="meta").as_subclass(SizeOnlyTensor)


@cache
def _split(elements: int, dtype: torch.dtype, sections: int) -> tuple[Tensor, ...]:
    split = torch.empty(elements, device="meta").tensor_split(sections)
    return tuple(sizes_only(part.numel(), dtype) for part in split)

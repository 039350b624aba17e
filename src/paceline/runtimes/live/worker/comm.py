"""A worker's communicator: sums of tensors, exchanges of documents, and messages to servers."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from paceline import shm
from paceline.collectives import NATIVE
from paceline.collectives.schedule import number_hosts
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.flat import own_memory
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import MemberStore, RunStore, check_equal
from paceline.runtimes.live.worker.allreduce import PendingSum, choose_all_reduce
from paceline.shm.host import host_id


class SoloComm:
    """The communicator of one worker, which sends nothing; those of several workers override what differs.

    All workers must make the same calls in the same order.
    """

    rank, workers = 0, 1
    transport = ""
    """What tensors travel through, for people."""
    alone = True
    """Whether there are no other workers, and never will be."""
    members: tuple[int, ...] = (0,)
    """The ranks that take part, as of the last call; the first one reports."""

    def sum(self, tensor: Tensor) -> None:
        """Replace every worker's tensor by the sum of all, in place."""

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:  # noqa: ARG002
        """Begin a sum; ``done`` is called from another thread when the tensor holds the result."""
        raise AssertionError(f"{type(self).__name__} reduces no gradients")

    def traffic(self, tensor: Tensor) -> tuple[int, int]:  # noqa: ARG002
        """Bytes that this worker (sends, receives) in the sum of such a tensor."""
        return 0, 0

    def minimum(self, tensor: Tensor) -> None:
        """Replace every worker's tensor by the element-wise minimum of all."""

    def barrier(self) -> None:
        self.minimum(torch.zeros(1))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace every worker's tensor by that of ``root``."""

    def exchange(self, document: Any) -> list[Any]:
        """Every worker's JSON document, by rank."""
        return [json.loads(json.dumps(document))]

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a vector that is summed or sent often."""
        return own_memory(length, dtype, device)

    def open_store(self) -> RunStore:
        """The run's store, over a connection of its own."""
        raise AssertionError(f"{type(self).__name__} has no store to share")

    def send(self, server: int, message: Any) -> None:  # noqa: ARG002
        """Send a message to a server; its tensors must not change before the answer."""
        raise RunFailed(f"the strategy sends to server {server}, and it has no servers")

    def receive(self) -> Envelope:
        """Wait for the next message of a server."""
        raise RunFailed("the strategy waits for a message, and it has no servers")

    def save_shards(self, step: int) -> None:
        """Have every server save its shard of the parameters."""

    def server_totals(self) -> list[Any]:
        """What every server has done, as JSON documents by rank."""
        return []

    def finish(self, clock: int, how: str) -> None:
        """Announce to the servers that this worker has "finished" or "left" after ``clock`` steps."""

    def leave(self) -> None:
        """Close when all workers have finished."""

    def abandon(self) -> None:
        """Close after a failure, without waiting for other workers."""


class ProcessGroupComm(SoloComm):
    """Several workers, joined by torch.distributed; documents travel through the run's store as JSON."""

    alone = False

    def __init__(
        self,
        info: ProcessInfo,
        options: LiveOptions,
        device: torch.device,
        collective: str,
        note: Callable[[str], None],
    ) -> None:
        self.rank, self.workers = info.rank, info.workers
        self.members = tuple(range(info.workers))
        self.transport = self._backend = options.transport(info, collective)
        self._device = device
        timeout = timedelta(seconds=options.timeout)
        self._store = MemberStore(info, timeout)
        try:  # groups of different backends would wait for each other for ever
            check_equal(self.exchange({"collective": collective, "the backend": self._backend}))
        except UsageError:
            self._store.leave()
            self._store.close()
            raise
        run = info.launch.name if info.launch else str(info.port)
        dist.init_process_group(
            self._backend,
            store=PrefixStore("torch", self._store),
            rank=info.rank,
            world_size=info.workers,
            timeout=timeout,
            device_id=device if self._backend == "nccl" else None,
            pg_options=shm.Options(run=run, warn=note) if self._backend == "shm" else None,
        )
        group = dist.group.WORLD
        if isinstance(group, shm.SharedMemoryGroup) and max(group.comm.team_sizes) == 1:
            self.transport = "gloo"  # no two workers can share memory
        hosts = number_hosts(self.exchange(host_id()))
        self._all_reduce = choose_all_reduce(collective, hosts, self.rank, self._backend)

    def sum(self, tensor: Tensor) -> None:
        self._all_reduce.sum(tensor)

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:
        return self._all_reduce.start(tensor, done)

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return self._all_reduce.traffic(tensor)

    def minimum(self, tensor: Tensor) -> None:
        there = tensor.to(self._device)
        dist.all_reduce(there, dist.ReduceOp.MIN)
        tensor.copy_(there)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        dist.broadcast(tensor, root)

    def exchange(self, document: Any) -> list[Any]:
        return self._store.exchange(document)

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In shared memory where the workers have some, so that sums happen in info."""
        if self._backend == "shm":
            return shm.zeros(length, dtype=dtype)
        return own_memory(length, dtype, device)

    def open_store(self) -> RunStore:
        return self._store.clone()

    def leave(self) -> None:
        self._store.leave()
        dist.destroy_process_group()
        self._store.close()

    def abandon(self) -> None:
        """Close the connections, so that the other ranks notice at once.

        Gloo cannot cancel a sum that has begun, and closing would wait for it: the process must end first.
        """
        self._store.close()
        with suppress(RuntimeError):
            if self._backend in ("nccl", "shm") and dist.group.WORLD is not None:
                dist.group.WORLD.abort()
            if self._backend == "shm" or (self._backend == "gloo" and self._all_reduce.idle()):
                dist.destroy_process_group()


def join_group(
    info: ProcessInfo,
    options: LiveOptions,
    device: torch.device,
    collective: str = NATIVE,
    note: Callable[[str], None] = lambda _: None,
) -> SoloComm:
    """Connect to the other workers, if there are any; ``collective`` is how they sum.

    ``note`` is called, on the first rank of a host, with what this host lacks.
    """
    return ProcessGroupComm(info, options, device, collective, note) if info.workers > 1 else SoloComm()

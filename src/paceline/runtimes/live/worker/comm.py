"""All workers of a run, as one of them reaches them: sums of tensors, and documents before and after."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from paceline import shm
from paceline.collectives import NATIVE
from paceline.collectives.schedule import number_hosts
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.flat import own_memory
from paceline.runtimes.live.documents import Documents, check_equal
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.worker.allreduce import Pending, choose_sums
from paceline.shm.host import host_id


class Group(Protocol):
    """What the engine needs of the others. All workers must make the same calls in the same order."""

    rank: int
    workers: int
    transport: str
    """What tensors travel through, for people."""
    alone: bool
    """Whether there is nobody else, and never will be."""

    @property
    def members(self) -> tuple[int, ...]:
        """The workers that are there, by rank, as of the last call; the first one speaks for all."""

    @property
    def seat(self) -> tuple[int, int]:
        """Which of the members this worker is, from 0, and how many they are."""

    def sum(self, tensor: Tensor) -> None:
        """Make every worker's tensor the sum of all, in place."""

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Begin to sum; ``done`` is called from another thread when the tensor holds the sum."""

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """Bytes that this worker (sends, receives) in the sum of such a tensor."""

    def minimum(self, tensor: Tensor) -> None:
        """Make every worker's tensor the smallest of all, element by element."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Make every worker's tensor that of ``root``."""

    def exchange(self, document: Any) -> list[Any]:
        """Every worker's JSON document, by rank."""

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a vector that is summed often."""

    def words(self) -> RunStore:
        """The run's store, over a connection of its own, for words between threads of the workers."""

    def send(self, server: int, message: Any) -> None:
        """Send a message to a server; its tensors must not change before an answer."""

    def receive(self) -> tuple[int, Any]:
        """Wait for a server's next message: (server, message)."""

    def leave(self) -> None:
        """End in agreement: nobody needs this worker any more."""

    def abandon(self) -> None:
        """End after a failure, without waiting for anybody."""


class NoServers:
    """A communicator of a run without servers."""

    def send(self, server: int, message: Any) -> None:  # noqa: ARG002
        raise RunFailed(f"the strategy sends to server {server}, and it has no servers")

    def receive(self) -> tuple[int, Any]:
        raise RunFailed("the strategy waits for a message, and it has no servers")


class SoloComm(NoServers):
    """One worker: there is nobody to talk to, and nothing is sent."""

    rank, workers, transport, alone = 0, 1, "", True
    members, seat = (0,), (0, 1)

    def sum(self, tensor: Tensor) -> None:
        """The tensor is the sum already."""

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Pending:  # noqa: ARG002
        """Never asked for."""
        raise AssertionError("one worker has nothing to sum")

    def traffic(self, tensor: Tensor) -> tuple[int, int]:  # noqa: ARG002
        """None."""
        return 0, 0

    def minimum(self, tensor: Tensor) -> None:
        """The tensor is the smallest already."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The tensor is the root's already."""

    def exchange(self, document: Any) -> list[Any]:
        """The one document, as the wire would have given it back."""
        return [json.loads(json.dumps(document))]

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Nobody else needs to reach it."""
        return own_memory(length, dtype, device)

    def words(self) -> RunStore:
        """Never asked for."""
        raise AssertionError("one worker has nobody to leave a word for")

    def leave(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""


class ProcessGroupComm(NoServers):
    """Several workers, joined by torch.distributed; documents travel through its store as JSON."""

    alone = False

    def __init__(
        self,
        place: ProcessInfo,
        options: LiveOptions,
        device: torch.device,
        collective: str,
        note: Callable[[str], None],
    ) -> None:
        self.rank, self.workers = place.rank, place.workers
        self._backend = options.transport(place, collective)
        self._device = device
        timeout = timedelta(seconds=options.timeout)
        self._documents = Documents(place, timeout)
        self._check_way(collective)
        dist.init_process_group(
            self._backend,
            store=PrefixStore("torch", self._documents.store),
            rank=place.rank,
            world_size=place.workers,
            timeout=timeout,
            device_id=device if self._backend == "nccl" else None,
            pg_options=shm.Options(run=place.launch.name if place.launch else str(place.port), warn=note)
            if self._backend == "shm"
            else None,
        )
        self.transport = "gloo" if _nothing_shared() else self._backend
        hosts = number_hosts(self.exchange(host_id()))
        self._sums = choose_sums(collective, hosts, self.rank, self._backend)

    @property
    def members(self) -> tuple[int, ...]:
        """All of them, or the run is over."""
        return tuple(range(self.workers))

    @property
    def seat(self) -> tuple[int, int]:
        """Rank and workers."""
        return self.rank, self.workers

    def _check_way(self, collective: str) -> None:
        """Groups of different backends would wait for each other in vain, so this comes before there is one."""
        asked = self.exchange({"collective": collective, "the backend": self._backend})
        try:
            check_equal(asked)
        except UsageError:
            self._documents.part()
            self._documents.close()
            raise

    def sum(self, tensor: Tensor) -> None:
        """Sum and wait."""
        self._sums.sum(tensor)

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Begin to sum; sums are carried out in the order in which they began."""
        return self._sums.start(tensor, done)

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """As the way of summing has it."""
        return self._sums.traffic(tensor)

    def minimum(self, tensor: Tensor) -> None:
        """Find the minimum and wait."""
        there = tensor.to(self._device)
        dist.all_reduce(there, dist.ReduceOp.MIN)
        tensor.copy_(there)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Broadcast and wait."""
        dist.broadcast(tensor, root)

    def exchange(self, document: Any) -> list[Any]:
        """Through the store."""
        return self._documents.exchange(document)

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In shared memory where the workers have some, so that sums happen in place."""
        if self._backend == "shm":
            return shm.zeros(length, dtype=dtype)
        return own_memory(length, dtype, device)

    def words(self) -> RunStore:
        """Another connection."""
        return self._documents.store.clone()

    def leave(self) -> None:
        """Say so, then close the connections."""
        self._documents.part()
        dist.destroy_process_group()
        self._documents.close()

    def abandon(self) -> None:
        """Close the connections, so that the others notice at once.

        Gloo cannot drop a sum that is under way, and closing would wait for it: the process must end first.
        """
        self._documents.close()
        with suppress(RuntimeError):
            if self._backend == "nccl" and dist.group.WORLD is not None:
                dist.group.WORLD.abort()
            elif self._backend == "shm" and dist.group.WORLD is not None:
                dist.group.WORLD.abort()
                dist.destroy_process_group()
            elif self._sums.idle():
                dist.destroy_process_group()


def _nothing_shared() -> bool:
    """Whether the group was to share memory and no two workers do, so that all goes through Gloo."""
    group = dist.group.WORLD
    return isinstance(group, shm.SharedMemoryGroup) and max(group.party.teams) == 1


def join(
    place: ProcessInfo,
    options: LiveOptions,
    device: torch.device,
    collective: str = NATIVE,
    note: Callable[[str], None] = lambda _: None,
) -> Group:
    """Meet the other workers, if there are any; ``collective`` is how they sum.

    ``note`` is told, on the first rank of a host, what this host lacks.
    """
    return ProcessGroupComm(place, options, device, collective, note) if place.workers > 1 else SoloComm()

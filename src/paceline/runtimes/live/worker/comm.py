"""A worker's communicator: sums of tensors, exchanges of documents, and messages to servers."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from time import perf_counter
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from paceline import shm
from paceline.codecs.exchanges import (
    AllGather,
    AllToAll,
    Exchanges,
    Gathered,
    Reduction,
    Sum,
    TensorExchange,
    run_programs,
)
from paceline.collectives import NATIVE, build_schedule
from paceline.collectives.execute import Reducer, TorchTransport
from paceline.collectives.schedule import number_hosts
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.flat import own_memory
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.run_store import MemberStore, RunStore, check_equal
from paceline.shm.host import host_id
from paceline.shm.operations import OPERATIONS
from paceline.shm.work_queue import WorkQueue

PendingSum = Callable[[], object]
_CODED = 1
"""The tag of messages with encoded vectors: none is ever taken for a part of a sum."""


class SoloComm:
    """One worker, which sends nothing. All workers must make the same calls in the same order."""

    rank, workers = 0, 1
    transport = ""
    alone = True
    """Whether there are no other workers, and never will be."""
    coding_seconds = 0.0
    """What reductions took besides their exchanges: encoding and decoding."""
    members: tuple[int, ...] = (0,)
    """The ranks that take part, as of the last call; the first one reports."""

    @property
    def gone(self) -> bool:
        """Whether the script has destroyed the group that this uses."""
        return False

    def sum(self, tensor: Tensor) -> None:
        """Replace every worker's tensor by the sum of all."""

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:  # noqa: ARG002
        """Begin a sum; ``done`` is called from another thread when the tensor holds the result."""
        raise AssertionError(f"{type(self).__name__} reduces no gradients")

    def traffic(self, tensor: Tensor) -> tuple[int, int]:  # noqa: ARG002
        """Bytes that this worker (sends, receives) in the sum of such a tensor."""
        return 0, 0

    def reduce(self, program: Reduction) -> tuple[int, int]:  # noqa: ARG002
        """Carry out this worker's part of a reduction; return the bytes that it (sends, receives)."""
        raise AssertionError(f"{type(self).__name__} reduces no gradients")

    def start(self, task: Callable[[], None]) -> PendingSum:  # noqa: ARG002
        """Begin a task in another thread, where it may sum and reduce; tasks are carried out in their order."""
        raise AssertionError(f"{type(self).__name__} reduces no gradients")

    def minimum(self, tensor: Tensor) -> None:
        """Replace every worker's tensor by the element-wise minimum of all."""

    def barrier(self) -> None:
        self.minimum(torch.zeros(1))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace every worker's tensor by that of ``root``."""

    def exchange(self, document: Any) -> list[Any]:
        return [json.loads(json.dumps(document))]

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return own_memory(length, dtype, device)

    def send(self, server: int, message: Any) -> None:  # noqa: ARG002
        """Send a message to a server; its tensors must not change before the answer."""
        raise RunFailed(f"the strategy sends to server {server}, and it has no servers")

    def receive(self) -> Envelope:
        raise RunFailed("the strategy waits for a message, and it has no servers")

    def save_shards(self, step: int) -> None:
        """Have every server save its shard of the parameters."""

    def server_totals(self) -> list[Any]:
        return []

    def finish(self, clock: int, how: Literal["finished", "left"]) -> None:
        """Announce to the servers that this worker has "finished" or "left" after ``clock`` steps."""

    def close(self, *, failed: bool = False) -> None:
        """Close when all workers have finished; after a failure, without waiting for them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


class ProcessGroupComm(SoloComm):
    alone = False
    _group: dist.ProcessGroup | None = None
    """Its own beside the default group, which the script has formed; None is the default group."""
    _swaps = False
    """Whether two ranks exchange by messages of their own, which Gloo has of CPU tensors only."""

    def __init__(
        self, info: ProcessInfo, options: LiveOptions, collective: str, note: Callable[[str], None]
    ) -> None:
        self.rank, self.workers = info.rank, info.workers
        self.members = tuple(range(info.workers))
        self._tasks = WorkQueue("reductions")
        self._idle: Callable[[], bool] = lambda: True
        """Whether every sum that was begun has ended."""
        self.transport = self._backend = options.transport(info, collective)
        self._device = options.device_of(info)
        self._swaps = self._backend == "gloo" and self._device.type == "cpu"
        timeout = timedelta(seconds=options.timeout)
        self._store = MemberStore(info, timeout)
        try:  # groups of different backends would wait for each other for ever
            check_equal(self.exchange({"collective": collective, "the backend": self._backend}))
        except UsageError:
            self._store.leave()
            self._store.close()
            raise
        run = info.launch.name if info.launch else str(info.port)
        pg_options = shm.Options(run=run, warn=note) if self._backend == "shm" else None
        if dist.is_initialized():
            self._group = dist.new_group(timeout=timeout, backend=self._backend, pg_options=pg_options)
        else:
            dist.init_process_group(
                self._backend,
                store=PrefixStore("torch", self._store),
                rank=info.rank,
                world_size=info.workers,
                timeout=timeout,
                device_id=self._device if self._backend == "nccl" else None,
                pg_options=pg_options,
            )
        group = self._group or dist.group.WORLD
        if isinstance(group, shm.SharedMemoryGroup) and max(group.comm.team_sizes) == 1:
            self.transport = "gloo"  # no two workers can share memory

    @property
    def gone(self) -> bool:
        return not dist.is_initialized()

    def sum(self, tensor: Tensor) -> None:
        if not self._swaps or not swaps(self.workers, tensor.nbytes):
            dist.all_reduce(tensor, group=self._group)
            return
        # Both workers add the same two numbers, so both get the same sum to the last bit.
        other = torch.empty_like(tensor)
        swap(tensor, 1 - self.rank, other, 1 - self.rank, group=self._group)
        tensor.add_(other)

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:
        work: dist.Work = dist.all_reduce(tensor, group=self._group, async_op=True)
        work.get_future().add_done_callback(lambda _: done())
        self._idle = work.is_completed
        return work.wait

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return (ring_bytes(tensor.nbytes, self.workers),) * 2

    def reduce(self, program: Reduction) -> tuple[int, int]:
        sent = received = 0
        begun, exchanging = perf_counter(), 0.0

        def exchange(exchanges: Exchanges) -> Gathered:
            nonlocal sent, received, exchanging
            assert exchanges[0] is not None
            started = perf_counter()
            (out, back), answer = self._exchange(exchanges[0])
            exchanging += perf_counter() - started
            sent, received = sent + out, received + back
            return [answer]

        run_programs([program], exchange)
        self.coding_seconds += perf_counter() - begun - exchanging
        return sent, received

    def _exchange(self, exchange: TensorExchange) -> tuple[tuple[int, int], list[Tensor] | None]:
        """Return the traffic, and the answer."""
        others = self.workers - 1
        match exchange:
            case Sum(tensor):
                self.sum(tensor)
                return self.traffic(tensor), None
            case AllGather(vector):
                return (others * vector.nbytes,) * 2, self.all_gather(vector)
            case AllToAll(vectors):
                return (others * vectors[0].nbytes,) * 2, self.all_to_all(vectors)

    def all_gather(self, vector: Tensor) -> list[Tensor]:
        """The vectors of all workers, by rank; they are equally long."""
        if self._swaps and self.workers == 2:  # Gloo's ring of two would send both ways on one connection
            return self.all_to_all([vector, vector])
        gathered = [torch.empty_like(vector) for _ in range(self.workers)]
        dist.all_gather(gathered, vector, group=self._group)
        return gathered

    def all_to_all(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Send ``vectors[r]`` to rank r; return what each sent to this one. All are equally long."""
        received = [torch.empty_like(vector) for vector in vectors]
        if not self._swaps:
            dist.all_to_all(received, list(vectors), group=self._group)
            return received
        received[self.rank].copy_(vectors[self.rank])
        for far in range(1, self.workers):  # by pairwise exchange, which is what it is priced as
            to, source = (self.rank + far) % self.workers, (self.rank - far) % self.workers
            swap(vectors[to], to, received[source], source, _CODED, self._group)
        return received

    def start(self, task: Callable[[], None]) -> PendingSum:
        work = self._tasks.later(task, [])
        self._idle = work.is_completed
        return work.wait

    def minimum(self, tensor: Tensor) -> None:
        there = tensor.to(self._device)
        dist.all_reduce(there, dist.ReduceOp.MIN, group=self._group)
        tensor.copy_(there)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        dist.broadcast(tensor, root, group=self._group)

    def exchange(self, document: Any) -> list[Any]:
        return self._store.exchange(document)

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._backend == "shm":
            return shm.zeros(length, dtype=dtype, group=self._group)
        return own_memory(length, dtype, device)

    def open_store(self) -> RunStore:
        return self._store.clone()

    def close(self, *, failed: bool = False) -> None:
        """After a failure, the other ranks notice at once.

        Gloo cannot cancel a sum that has begun, and closing would wait for it: the process must end first.
        """
        if not failed:
            self._store.leave()
            dist.destroy_process_group(self._group)
        self._tasks.close(0)
        self._store.close()
        with suppress(RuntimeError):
            group = self._group or dist.group.WORLD
            if self.gone:
                return
            if failed and self._backend in ("nccl", "shm") and group is not None:
                group.abort()
            if failed and (self._backend == "shm" or (self._backend == "gloo" and self._idle())):
                dist.destroy_process_group(self._group)


class ScheduledComm(ProcessGroupComm):
    """Sums by a schedule, point to point.

    Sums that are begun are carried out by one thread, in their order; a synchronous one begins when all of these
    have ended. So their messages never mix, and the order is the same on all workers.
    """

    def __init__(
        self, info: ProcessInfo, options: LiveOptions, collective: str, note: Callable[[str], None]
    ) -> None:
        super().__init__(info, options, collective, note)
        self._schedule = build_schedule(collective, number_hosts(self.exchange(host_id())))
        self._reducer = Reducer(self._schedule, self.rank, TorchTransport())
        self._queue = WorkQueue("all-reduce")
        self._idle = lambda: self._queue.idle
        self._traffic = cache(self._count)

    def sum(self, tensor: Tensor) -> None:
        self._queue.now(lambda: self._reducer.all_reduce(tensor, OPERATIONS["sum"]), [tensor])

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:
        def task() -> None:
            self._reducer.all_reduce(tensor, OPERATIONS["sum"])
            done()

        return self._queue.later(task, [tensor]).wait

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return self._traffic(tensor.nbytes, tensor.element_size())

    def _count(self, size: int, element: int) -> tuple[int, int]:
        return traffic_of_all(self._schedule, size, element, self._schedule.segments(size))[self.rank]


def swap(
    given: Tensor,
    to: int,
    taken: Tensor,
    source: int,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Send to one rank while receiving from one, which may be the same.

    The receive goes first. Gloo sends no tensor before the receiver has said that it is ready for it, and it says so
    on the connection that its own tensors take: behind one that is under way, the word would come when that is over,
    and the two directions would take turns.
    """
    arriving = dist.irecv(taken, source, group, tag)
    leaving = dist.isend(given, to, group, tag)
    assert arriving is not None
    assert leaving is not None
    arriving.wait()
    leaving.wait()


def join_group(
    info: ProcessInfo,
    options: LiveOptions,
    collective: str = NATIVE,
    note: Callable[[str], None] = lambda _: None,
) -> SoloComm:
    if info.workers == 1:
        return SoloComm()
    kind = ProcessGroupComm if collective == NATIVE else ScheduledComm
    return kind(info, options, collective, note)

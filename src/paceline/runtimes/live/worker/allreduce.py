"""How a worker's tensors are summed over all workers: by the backend's own all-reduce, or by a schedule."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.collectives import NATIVE, build_schedule
from paceline.collectives.execute import Reducer, TorchTransport
from paceline.collectives.schedule import Schedule
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.shm.operations import OPERATIONS

PendingSum = Callable[[], object]
"""Waits for a sum that was begun, and raises its error."""


class NativeAllReduce:
    """The backend's own; a pair of workers that communicate over gloo swaps what is small."""

    def __init__(self, rank: int, workers: int, transport: str) -> None:
        self._rank, self._workers = rank, workers
        self._pair = transport == "gloo"
        self._last: dist.Work | None = None

    def sum(self, tensor: Tensor) -> None:
        if not (self._pair and swaps(self._workers, tensor.nbytes)):
            dist.all_reduce(tensor)
            return
        # Both workers add the same two numbers, so both get the same sum to the last bit.
        other = torch.empty_like(tensor)
        sending = dist.isend(tensor, 1 - self._rank)
        dist.recv(other, 1 - self._rank)
        assert sending is not None
        sending.wait()
        tensor.add_(other)

    def start(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:
        """Begin to sum; torch carries sums out in the order in which they began."""
        work: dist.Work = dist.all_reduce(tensor, async_op=True)
        work.get_future().add_done_callback(lambda _: done())
        self._last = work
        return work.wait

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return (ring_bytes(tensor.nbytes, self._workers),) * 2

    def idle(self) -> bool:
        """Whether every sum that was begun has ended."""
        return self._last is None or self._last.is_completed()


class ScheduledAllReduce:
    """By a schedule, point to point.

    Sums that are begun are carried out by one thread, in their order; a synchronous one begins when all of these
    have ended. So their messages never mix, and the order is the same on all workers.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._schedule, self._rank = schedule, rank
        self._reducer = Reducer(schedule, rank, TorchTransport())
        self._begun: SimpleQueue[tuple[Future[None], Tensor, Callable[[], None]]] = SimpleQueue()
        self._last: Future[None] | None = None
        self._traffic = cache(self._count)

    def sum(self, tensor: Tensor) -> None:
        if self._last is not None:
            self._last.result()
        self._reducer.all_reduce(tensor, OPERATIONS["sum"])

    def start(self, tensor: Tensor, done: Callable[[], None]) -> PendingSum:
        """Queue it for the thread, which is started with the first sum and ends with the process."""
        if self._last is None:
            threading.Thread(target=self._work, name="all-reduce", daemon=True).start()
        self._last = Future()
        self._begun.put((self._last, tensor, done))
        return self._last.result

    def _work(self) -> None:
        while True:
            future, tensor, done = self._begun.get()
            try:
                self._reducer.all_reduce(tensor, OPERATIONS["sum"])
                done()
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return self._traffic(tensor.nbytes, tensor.element_size())

    def _count(self, size: int, element: int) -> tuple[int, int]:
        return traffic_of_all(self._schedule, size, element, self._schedule.segments(size))[self._rank]

    def idle(self) -> bool:
        """Whether every sum that was begun has ended."""
        return self._last is None or self._last.done()


def choose_all_reduce(
    collective: str, hosts: Sequence[int], rank: int, transport: str
) -> NativeAllReduce | ScheduledAllReduce:
    """The backend's own, or the schedule of that name among workers on these hosts."""
    if collective == NATIVE:
        return NativeAllReduce(rank, len(hosts), transport)
    return ScheduledAllReduce(build_schedule(collective, hosts), rank)

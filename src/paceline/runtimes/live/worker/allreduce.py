"""How a worker's tensors become sums: by the backend's own all-reduce, or by a schedule."""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.collectives import NATIVE, build_schedule
from paceline.collectives.execute import Reducer
from paceline.collectives.over_torch import TorchTransport
from paceline.collectives.schedule import Schedule
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.shm.operations import OPERATIONS


class Pending(Protocol):
    """A sum that is under way."""

    def wait(self) -> object:
        """Return when the tensor holds the sum."""


class Sums(Protocol):
    """Sums over all workers, who must ask for the same ones in the same order."""

    def sum(self, tensor: Tensor) -> None:
        """Make every worker's tensor the sum of all, in place."""

    def start(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Begin to sum; ``done`` is called from another thread when the tensor holds the sum."""

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """Bytes that a sum of such a tensor (sends, receives)."""

    def idle(self) -> bool:
        """Whether no sum that was begun is still under way."""


class NativeSums:
    """The backend's own; a pair of workers that talk over gloo swaps what is small."""

    def __init__(self, rank: int, workers: int, transport: str) -> None:
        self._rank, self._workers = rank, workers
        self._pair = transport == "gloo"
        self._under_way: dist.Work | None = None

    def sum(self, tensor: Tensor) -> None:
        """Sum and wait."""
        if self._pair and swaps(self._workers, tensor.nbytes):
            self._swap(tensor)
        else:
            dist.all_reduce(tensor)

    def _swap(self, tensor: Tensor) -> None:
        """Both workers add the same two numbers, so both get the same sum to the last bit."""
        other = torch.empty_like(tensor)
        sending = dist.isend(tensor, 1 - self._rank)
        dist.recv(other, 1 - self._rank)
        assert sending is not None
        sending.wait()
        tensor.add_(other)

    def start(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Begin to sum; torch carries sums out in the order in which they began."""
        work: dist.Work = dist.all_reduce(tensor, async_op=True)
        work.get_future().add_done_callback(lambda _: done())
        self._under_way = work
        return work

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """Those of a ring."""
        return (ring_bytes(tensor.nbytes, self._workers),) * 2

    def idle(self) -> bool:
        """Whether the last one has ended, and so all."""
        return self._under_way is None or self._under_way.is_completed()


class ScheduledSums:
    """By a schedule, point to point.

    Sums that are begun are carried out by one thread, in their order; one that is waited for begins when all of these
    have ended. So their messages never mix, and the order is the same on all workers.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._schedule, self._rank = schedule, rank
        self._reducer = Reducer(schedule, rank, TorchTransport())
        self._begun: SimpleQueue[_Sum] = SimpleQueue()
        self._last: _Sum | None = None
        self._traffic = cache(self._count)

    def sum(self, tensor: Tensor) -> None:
        """Sum in this thread, after what was begun."""
        if self._last is not None:
            self._last.wait()
        self._reduce(tensor)

    def _reduce(self, tensor: Tensor) -> None:
        self._reducer.all_reduce(tensor, OPERATIONS["sum"])

    def start(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Leave it to the thread, which is started with the first sum and ends with the process."""
        if self._last is None:
            threading.Thread(target=self._work, name="sums", daemon=True).start()
        self._last = _Sum(tensor, done)
        self._begun.put(self._last)
        return self._last

    def _work(self) -> None:
        while True:
            self._begun.get().carry_out(self._reduce)

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """Those of the schedule's transfers, in the segments in which they are carried out."""
        return self._traffic(tensor.nbytes, tensor.element_size())

    def _count(self, size: int, element: int) -> tuple[int, int]:
        return traffic_of_all(self._schedule, size, element, self._schedule.segments(size))[self._rank]

    def idle(self) -> bool:
        """Whether the last one has ended, and so all."""
        return self._last is None or self._last.over.is_set()


class _Sum:
    """One that was begun; it holds its error until somebody waits for it."""

    def __init__(self, tensor: Tensor, done: Callable[[], None]) -> None:
        self._tensor, self._done = tensor, done
        self._error: Exception | None = None
        self.over = threading.Event()

    def carry_out(self, reduce: Callable[[Tensor], None]) -> None:
        try:
            reduce(self._tensor)
            self._done()
        except Exception as error:
            self._error = error
        self.over.set()

    def wait(self) -> None:
        self.over.wait()
        if self._error is not None:
            raise self._error


def choose_sums(collective: str, hosts: Sequence[int], rank: int, transport: str) -> Sums:
    """The backend's own way, or the schedule of that name among workers on these hosts."""
    if collective == NATIVE:
        return NativeSums(rank, len(hosts), transport)
    return ScheduledSums(build_schedule(collective, hosts), rank)

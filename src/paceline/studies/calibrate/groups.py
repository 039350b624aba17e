"""The workers of a calibration as training sees them, by each way that there is between them."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from paceline import shm
from paceline.collectives.choose import NATIVE
from paceline.runtimes.flat import own_memory
from paceline.runtimes.live.worker.allreduce import Pending, choose_sums
from paceline.runtimes.live.worker.comm import ProcessGroupComm
from paceline.studies.collectives.group import BenchGroup


class Averaging(ProcessGroupComm):
    """Sums alone, over a group that somebody else has made and will end."""

    def __init__(self, room: BenchGroup) -> None:
        self.rank, self.workers, self.transport = room.rank, room.workers, "gloo"
        self._sums = choose_sums(NATIVE, room.hosts, room.rank, "gloo")
        self._word = self.zeros(16, torch.float32, torch.device("cpu"))

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Ordinary memory."""
        return own_memory(length, dtype, device)

    def meet(self) -> None:
        """Return when all have come."""
        self.sum(self._word)


class InMemory(Averaging):
    """The same in shared memory."""

    def __init__(self, room: BenchGroup) -> None:
        self._shm = room.shm
        super().__init__(room)
        self.transport = "shm"

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: ARG002
        """Memory that all workers map."""
        return shm.zeros(length, dtype=dtype, group=self._shm)

    def sum(self, tensor: Tensor) -> None:
        """Sum in place and wait."""
        dist.all_reduce(tensor, group=self._shm)

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Pending:
        """Begin to sum."""
        work: dist.Work = dist.all_reduce(tensor, group=self._shm, async_op=True)
        work.get_future().add_done_callback(lambda _: done())
        return work


def groups(room: BenchGroup) -> Mapping[str, Averaging]:
    """By the names that profiles give links."""
    if len(set(room.hosts)) == 1:
        return {"memory": InMemory(room), "loopback": Averaging(room)}
    return {"network": Averaging(room)}

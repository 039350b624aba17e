"""The workers of a script's own process group, as far as only its store is used."""

import json
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from paceline.errors import UsageError
from paceline.loop.group import placed
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import default_store
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.shm.host import host_id

AT_START = 60.0
"""Seconds that a worker waits in its first forward until all are in theirs."""
AT_END = 10.0
"""Seconds that rank 0 waits for what the others did, when its script has ended."""


class StoreComm(SoloComm):
    """Exchanges documents, and sends nothing by the group itself: its collectives are the script's."""

    alone = False

    def __init__(self, store: Store, rank: int, workers: int, patience: float = AT_START) -> None:
        """``patience`` is how many seconds a worker waits for the others' documents."""
        self.store, self.rank, self.workers = store, rank, workers
        self.members = tuple(range(workers))
        self._patience, self._exchanges = patience, 0
        self.is_over = False
        """Whether the script has ended: then rank 0 takes the documents that it gets, and the others only give."""

    def exchange(self, document: Any) -> list[Any]:
        keys = [f"documents/{self._exchanges}/{rank}" for rank in range(self.workers)]
        self._exchanges += 1
        self.store.set(keys[self.rank], json.dumps(document))
        if self.is_over:
            return self._those_of(keys if self.rank == 0 else keys[self.rank : self.rank + 1])
        try:
            self.store.wait(keys, timedelta(seconds=self._patience))
        except RuntimeError as error:
            missing = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
            raise UsageError(
                f"rank {', '.join(missing)} did not train a watched model within {self._patience:g} s; all workers "
                "call paceline.watch()"
            ) from error
        return [json.loads(found) for found in self.store.multi_get(keys)]

    def _those_of(self, keys: list[str]) -> list[Any]:
        found, deadline = [], monotonic() + AT_END
        for key in keys:
            with suppress(RuntimeError):  # that process is gone, or goes on for long
                self.store.wait([key], timedelta(seconds=max(0.001, deadline - monotonic())))
                found.append(json.loads(self.store.get(key)))
        return found


def meet(
    info: ProcessInfo, group: dist.ProcessGroup | None, device: torch.device, name: str
) -> tuple[SoloComm, ProcessInfo]:
    """The workers of the script's group, and this one's place among them; without a group it is alone.

    ``group`` is the default one where it is None, and ``name`` is where the store keeps what they say.
    """
    formed = default_store()
    if formed is None or dist.get_world_size() == 1:
        return SoloComm(), placed(info, 0, [host_id()])
    ranks = dist.get_process_group_ranks(group)
    store = PrefixStore(f"{name}/{ranks[0]}-{len(ranks)}", formed)
    comm = StoreComm(store, dist.get_rank(group), len(ranks))
    comm.transport = _transport(group or dist.group.WORLD, device)
    return comm, placed(info, comm.rank, comm.exchange(host_id()))


def _transport(group: Any, device: torch.device) -> str:
    with suppress(RuntimeError):  # a group without a backend for this device
        return str(group._get_backend(device).name())
    return str(dist.get_backend(group))

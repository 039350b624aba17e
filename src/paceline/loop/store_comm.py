"""The workers of a script's own process group, as far as only its store is used."""

import json
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

from torch.distributed.distributed_c10d import Store

from paceline.errors import UsageError
from paceline.runtimes.live.worker.comm import SoloComm

AT_END = 10.0
"""Seconds that rank 0 waits for what the others did, when its script has ended."""


class StoreComm(SoloComm):
    """Exchanges documents, and sends nothing by the group itself: its collectives are the script's."""

    alone = False

    def __init__(self, store: Store, rank: int, workers: int, patience: float) -> None:
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

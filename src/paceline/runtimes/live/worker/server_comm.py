"""All workers of a served run, as one of them reaches them: through a store at first, then through server 0."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from paceline.runtimes.live.documents import Documents
from paceline.runtimes.live.launch_folder import write_servers
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, file_stem
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.allreduce import Pending
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.strategies.messages import MESSAGES

RUN = "served/run"
"""Where the first worker tells the servers what the run is called and where it goes on."""


def server_key(rank: int) -> str:
    """Where a server tells how it is reached."""
    return f"served/server-{rank}"


class ServedGroup:
    """The workers that are there; when one dies the others go on."""

    alone = False

    def __init__(self, rank: int, workers: int, memory: SharedFlat) -> None:
        self.rank, self.workers, self.members = rank, workers, tuple(range(workers))
        self.transport = "encrypted TCP"
        self.memory = memory
        self._line: ServerClient | None = None

    @property
    def seat(self) -> tuple[int, int]:
        """Among those who took part in the last call."""
        return self.members.index(self.rank), len(self.members)

    @property
    def line(self) -> ServerClient:
        """The line to the servers, once there is one."""
        assert self._line is not None, "connect first"
        return self._line

    def connect(self, line: ServerClient) -> None:
        """Talk through the servers from now on."""
        self._line = line

    def sum(self, tensor: Tensor) -> None:
        """Sum over those who are there."""
        self._together("sum", tensor)

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Pending:  # noqa: ARG002
        """Never asked for: gradients go to the servers."""
        raise AssertionError("workers of a parameter server do not reduce gradients among themselves")

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        """There and back."""
        return tensor.nbytes, tensor.nbytes

    def minimum(self, tensor: Tensor) -> None:
        """The smallest among those who are there."""
        self._together("min", tensor)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The root's, or that of the first who is there."""
        self._together("broadcast", tensor, root)

    def exchange(self, document: Any) -> list[Any]:
        """The documents of those who are there, by rank."""
        self.members, documents = self.line.exchange(document)
        return documents

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In memory that servers on this host share."""
        return self.memory.zeros(length, dtype, device)

    def words(self) -> RunStore:
        """Never asked for: the servers carry the word."""
        raise AssertionError("workers of a parameter server leave their words with the servers")

    def send(self, server: int, message: Any) -> None:
        self.line.send(server, message)

    def receive(self) -> tuple[int, Any]:
        envelope = self.line.wait_for(*MESSAGES)
        return envelope.sender, envelope.message

    def leave(self) -> None:
        """Whoever lived has said goodbye already."""
        self.line.close()

    def abandon(self) -> None:
        """Close without a word: the servers notice."""
        if self._line is not None:
            self._line.close()

    def _together(self, op: str, tensor: Tensor, root: int = 0) -> None:
        self.members, result = self.line.collective(op, tensor.cpu(), root)
        with torch.no_grad():
            tensor.copy_(result.view_as(tensor))


class Entering(ServedGroup):
    """A worker that was there from the start: until it is connected, all workers meet through their store."""

    def __init__(self, place: ProcessInfo, options: LiveOptions, memory: SharedFlat) -> None:
        super().__init__(place.rank, place.workers, memory)
        self._servers, self._place = place.servers, place
        self._documents = Documents(place, timedelta(seconds=options.timeout))

    def exchange(self, document: Any) -> list[Any]:
        """Through the store, then through server 0."""
        return super().exchange(document) if self._line else self._documents.exchange(document)

    def servers(self) -> list[dict[str, Any]]:
        """What every server tells of itself; waits for them."""
        keys = [server_key(rank) for rank in range(self._servers)]
        return [json.loads(text) for text in self._documents.store.read(keys)]

    def leave(self) -> None:
        """The store has been needed for no more than the start."""
        super().leave()
        self._documents.close()

    def abandon(self) -> None:
        """The store is closed too."""
        super().abandon()
        self._documents.close()

    def open(self, patience: float, asked: Callable[[], bool], run: dict[str, Any]) -> ServerClient:
        """Tell the servers what is run, and connect to them."""
        endpoints = [server["endpoint"] for server in self.servers()]
        if self._place.launch is not None:
            write_servers(self._place.launch, file_stem(self.rank), endpoints)
        if self.rank == 0:
            self._documents.store.set(RUN, json.dumps(run))
        line = ServerClient.enter(
            self._documents.secret, endpoints, self.memory, self.rank, patience=patience, stop_requested=asked
        )
        if line.shares:
            self.transport = "shm" if self._place.nodes == 1 else "shared memory and encrypted TCP"
        self.connect(line)
        return line

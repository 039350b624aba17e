"""The communicator of a run with servers: through the run's store at first, then through server 0."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from paceline.runtimes.live.launch_folder import write_servers
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, file_stem
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.wire import messages
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.strategies.messages import MESSAGES

RUN = "served/run"
"""The store's key under which rank 0 describes the run to the servers."""


def server_key(rank: int) -> str:
    """The store's key under which a server describes itself."""
    return f"served/server-{rank}"


class ServerComm(SoloComm):
    """Collectives over the workers that are connected; when one dies the remaining ones continue."""

    alone = False
    transport = "encrypted TCP"

    def __init__(self, rank: int, workers: int, memory: SharedFlat) -> None:
        """Of a worker that joins: it has no store, and ``connect`` must come before anything else."""
        self.rank, self.workers, self.members = rank, workers, tuple(range(workers))
        self.memory = memory
        self._store: MemberStore | None = None
        self._client: ServerClient | None = None

    @classmethod
    def at_start(cls, place: ProcessInfo, options: LiveOptions) -> "ServerComm":
        """Of a worker that is there from the start: until it is connected, documents go through the store."""
        name = place.launch.name if place.launch else str(place.port)
        comm = cls(place.rank, place.workers, SharedFlat(name))
        comm._store = MemberStore(place, timedelta(seconds=options.timeout))
        return comm

    @property
    def client(self) -> ServerClient:
        assert self._client is not None, "connect first"
        return self._client

    def servers(self, count: int) -> list[dict[str, Any]]:
        """What every server says of itself; waits for them."""
        assert self._store is not None
        keys = [server_key(rank) for rank in range(count)]
        return [json.loads(text) for text in self._store.read(keys)]

    def open(self, place: ProcessInfo, patience: float, stop_requested: Callable[[], bool], run: Any) -> None:
        """Describe the run to the servers, and connect to them."""
        assert self._store is not None
        endpoints = [server["endpoint"] for server in self.servers(place.servers)]
        if place.launch is not None:
            write_servers(place.launch, file_stem(self.rank), endpoints)
        if self.rank == 0:
            self._store.set(RUN, json.dumps(run))
        self.connect(self._store.secret, endpoints, patience, stop_requested)
        if self.client.shares:
            self.transport = "shm" if place.nodes == 1 else "shared memory and encrypted TCP"

    def connect(
        self,
        secret: Secret,
        endpoints: list[str],
        patience: float,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect and be known to all servers as this rank; the heartbeats to them begin here."""
        client = ServerClient(
            secret, endpoints, self.memory, patience=patience, stop_requested=stop_requested
        )
        self._client = client
        client.send_all(self.memory.hello(self.rank))
        # Before all have answered: a server that does so first must not take the wait for the others for a death.
        client.start_heartbeat(self.rank)
        client.gather(messages.Welcome)
        self.memory.seal()

    def sum(self, tensor: Tensor) -> None:
        self._collective("sum", tensor)

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return tensor.nbytes, tensor.nbytes

    def minimum(self, tensor: Tensor) -> None:
        self._collective("min", tensor)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """That of the root, or of the first member where the root is gone."""
        self._collective("broadcast", tensor, root)

    def exchange(self, document: Any) -> list[Any]:
        if self._client is None and self._store is not None:
            return self._store.exchange(document)
        self.client.send(0, messages.Document(json.dumps(document)))
        documents = json.loads(self.client.wait_for(messages.AllDocuments).message.document)
        self.members = tuple(int(rank) for rank in documents)
        return [json.loads(text) for text in documents.values()]

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In memory that servers on this host map."""
        return self.memory.zeros(length, dtype, device)

    def send(self, server: int, message: Any) -> None:
        self.client.send(server, message)

    def receive(self) -> tuple[int, Any]:
        envelope = self.client.wait_for(*MESSAGES)
        return envelope.sender, envelope.message

    def save_shards(self, step: int) -> None:
        """All workers ask, so that none continues before."""
        self.client.send_all(messages.SaveShard(step))
        self.client.gather(messages.ShardSaved)

    def server_totals(self) -> list[Any]:
        self.client.send_all(messages.GetTotals())
        return [json.loads(reply.document) for reply in self.client.gather(messages.TotalsReply)]

    def finish(self, clock: int, how: str) -> None:
        self.client.send_all(messages.Goodbye(clock, how))
        self.client.close()

    def leave(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close without a message: the servers notice."""
        if self._client is not None:
            self._client.close()
        if self._store is not None:
            self._store.close()

    def _collective(self, op: str, tensor: Tensor, root: int = 0) -> None:
        self.client.send(0, messages.Contribution(op, root, tensor.cpu().contiguous()))
        result = self.client.wait_for(messages.Result).message
        self.members = tuple(int(rank) for rank in result.members.split(","))
        with torch.no_grad():
            tensor.copy_(result.tensor.view_as(tensor))

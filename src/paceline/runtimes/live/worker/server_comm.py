"""The communicator of a run with servers: its connections to them, and collectives through server 0."""

import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.launch_folder import write_servers
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, file_stem
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.timeouts import BEAT, CONNECTING, GRACE, STALLED
from paceline.runtimes.live.wire import messages
from paceline.runtimes.live.wire.channel import (
    Announce,
    Channel,
    Destination,
    MessageLimits,
    OtherVersion,
    Packet,
    connect,
)
from paceline.runtimes.live.wire.encoding import (
    MAX_REPLY,
    MAX_TENSOR,
    Accepted,
    bytes_of,
    new_memory,
    pack,
    unpack,
)
from paceline.runtimes.live.wire.noise import NotGenuine
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.stopping import AT_SYNC_POINT, StopByVote
from paceline.strategies.base import server_slices
from paceline.strategies.effects import Peer
from paceline.strategies.messages import MESSAGES, Model

RUN = "served/run"
"""The store's key under which rank 0 describes the run to the servers."""
_POLL = 0.25
"""Seconds between checks whether the servers are still there."""


def server_key(rank: int) -> str:
    """The store's key under which a server describes itself."""
    return f"served/server-{rank}"


class ServerLost(ConnectionError):
    """A server does not answer any more."""


class Expelled(ConnectionError):
    """The servers have expelled this worker; the run continues without it."""


class ServerConnection:
    """One server as a worker reaches it. A lost connection is not replaced: messages may be lost with it."""

    def __init__(
        self, number: int, endpoint: str, secret: bytes, announce: Announce, limits: MessageLimits
    ) -> None:
        """ServerLost if there is no answer, and a UsageError where the secret or the version is wrong."""
        self.number, self.endpoint = number, endpoint
        self.shares = False
        """Whether the server maps this worker's memory."""
        self.down_at: float | None = None
        """When the connection was lost, by the monotonic clock."""
        try:
            self.channel = connect(endpoint, secret, announce, limits)
        except OtherVersion:
            raise UsageError(
                f"server {number} at {endpoint} runs another version of paceline; install the same on every host"
            ) from None
        except NotGenuine:
            raise UsageError(
                f"server {number} at {endpoint} does not accept this worker's secret; give the same "
                "secret file on every host"
            ) from None
        except OSError as error:
            raise self._lost(f"no connection within {CONNECTING:g} s ({error})") from None

    def send(self, packet: Packet) -> None:
        self.check(grace=0.0)
        try:
            self.channel.send(packet, 1, STALLED)
        except OSError as error:
            raise self._lost(str(error)) from None

    def read(self) -> bool:
        """Read what has arrived; False if this is the end of the connection."""
        try:
            self.channel.read()
        except OSError:
            self.down_at = time.monotonic()
        return self.down_at is None

    def check(self, grace: float = GRACE) -> None:
        if self.down_at is not None and time.monotonic() - self.down_at >= grace:
            raise self._lost("connection closed by peer")

    def _lost(self, how: str) -> ServerLost:
        return ServerLost(f"server {self.number} at {self.endpoint} is lost: {how}")

    def close(self, end: float) -> None:
        """Close once the server has closed too, or at ``end``: what it has not read could be lost otherwise."""
        with suppress(OSError):
            while self.down_at is None and (left := end - time.monotonic()) > 0:
                self.channel.socket.settimeout(left)
                if not self.channel.socket.recv(2**16):
                    break
        self.channel.close()


class ServerClient:
    """Sends to all servers and receives from whichever answers first.

    Once a server's Welcome says that it maps the worker's memory, tensors that lie there do not travel. A Model is
    received right into the parameters of ``memory``, so a worker must not use those while it waits for one.
    """

    def __init__(
        self,
        secret: Secret,
        endpoints: Sequence[str],
        memory: SharedFlat,
        *,
        patience: float = 60.0,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """``patience`` is how many seconds an answer may take; ``stop_requested`` goes to the servers with messages.

        ServerLost if a server does not answer, and a UsageError where the secret is wrong.
        """
        self.stopping = False
        """Whether the servers have announced that all workers stop."""
        self._memory, self._secret, self._endpoints = memory, wire_key(secret), endpoints
        self._patience, self._stop_requested = patience, stop_requested
        self._received: deque[Envelope] = deque()
        self._later: deque[Envelope] = deque()
        self._closing = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self.servers: list[ServerConnection] = []
        self._selector = selectors.DefaultSelector()
        limits = MessageLimits(2 * MAX_REPLY, 2 * max(MAX_TENSOR, memory.params.nbytes))
        try:
            for number, endpoint in enumerate(endpoints):
                announce = partial(
                    self._announce, number, server_slices(memory.params, len(endpoints))[number]
                )
                server = ServerConnection(number, endpoint, self._secret, announce, limits)
                self.servers.append(server)
                self._selector.register(server.channel.socket, selectors.EVENT_READ, server)
        except BaseException:
            self.close(0.0)
            raise

    def start_heartbeat(self, rank: int) -> None:
        """Over connections of their own: while the process lives every server knows, whatever it is busy with."""
        self._heartbeat = threading.Thread(target=self._beat, args=(rank,), daemon=True)
        self._heartbeat.start()

    def send(self, server: int, message: Any) -> None:
        """Send a message; its tensors must not change before the answer. ServerLost if that fails."""
        connection = self.servers[server]
        find = self._memory.find if connection.shares else lambda _: None
        connection.send(pack(message, stop=self._stop_requested(), find=find))

    def receive(self, timeout: float) -> Envelope:
        """The next message of any server; TimeoutError if none arrives within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while not self._received:
            for server in self.servers:
                server.check()
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no server has answered for {timeout:g} s")
            for key, _ in self._selector.select(min(_POLL, left)):
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
        return self._received.popleft()

    def wait_for(self, *kinds: type) -> Envelope:
        """The next message of one of these kinds; others are kept for later."""
        for place, envelope in enumerate(self._later):
            if isinstance(envelope.message, kinds):
                del self._later[place]
                return envelope
        while True:
            envelope = self.receive(self._patience)
            self.stopping = self.stopping or envelope.stop
            if isinstance(envelope.message, messages.Refusal):
                reason = envelope.message.reason
                if reason.startswith(messages.EXPELLED):
                    raise Expelled(reason.removeprefix(messages.EXPELLED))
                raise UsageError(f"server {envelope.sender.rank} refuses this worker: {reason}")
            if isinstance(envelope.message, kinds):
                return envelope
            self._later.append(envelope)

    def ask_all(self, message: Any, kind: type) -> list[Any]:
        """Send a message to all servers; return the answer of each, by rank."""
        for server in self.servers:
            self.send(server.number, message)
        replies = [self.wait_for(kind) for _ in self.servers]
        return [reply.message for reply in sorted(replies, key=lambda reply: reply.sender)]

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has been read or after ``linger`` seconds."""
        self._closing.set()
        if self._heartbeat is not None:
            self._heartbeat.join(BEAT)  # it may still be connecting
        for server in self.servers:
            with suppress(OSError):
                server.channel.socket.shutdown(socket.SHUT_WR)
        end = time.monotonic() + linger
        for server in self.servers:
            server.close(end)
        self.servers.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announce(self, number: int, shard: Tensor, _: Channel, header: memoryview, size: int) -> Destination:
        """Where a server's message is received; ``shard`` is what it keeps of this worker's parameters."""

        def allocate(kind: type, length: int, dtype: torch.dtype) -> Tensor:
            in_place = kind is Model and shard.device.type == "cpu"
            return shard if in_place else new_memory(kind, length, dtype)

        accepted = Accepted(kinds=messages.TO_WORKER, length=shard.numel(), dtype=shard.dtype)
        sender = Peer("server", number)
        envelope, body = unpack(header, size, accepted, sender, self._memory.mapped, allocate)

        def take() -> None:
            if isinstance(envelope.message, messages.Welcome):
                self.servers[number].shares = envelope.message.shares
            self._received.append(envelope)

        return Destination(bytes_of(body), take)

    def _beat(self, rank: int) -> None:
        alive = pack(messages.Alive(rank))
        channels: list[Channel] = []
        for endpoint in self._endpoints:
            with suppress(OSError):  # the worker notices itself
                channels.append(connect(endpoint, self._secret))
        closing = False
        while not closing:
            for channel in channels:
                with suppress(OSError):  # a server that is gone or late needs no more than is queued already
                    channel.flush()
                    channel.send(alive, most=1)
            closing = self._closing.wait(BEAT)
        for channel in channels:
            channel.close()


class ServerComm(SoloComm):
    """Collectives over the workers that are connected; when one dies the remaining ones continue."""

    alone = False
    transport = "encrypted TCP"
    client: ServerClient

    def __init__(self, rank: int, workers: int, run: str) -> None:
        """Of a worker that joins: it has no store, and ``connect`` must come before anything else."""
        self.rank, self.workers, self.members = rank, workers, tuple(range(workers))
        self.memory = SharedFlat(run)
        self._store: MemberStore | None = None
        self._connected = False

    @classmethod
    def at_start(cls, info: ProcessInfo, options: LiveOptions) -> "ServerComm":
        """Of a worker that is there from the start: until it is connected, documents go through the store."""
        comm = cls(info.rank, info.workers, info.launch.name if info.launch else str(info.port))
        comm._store = MemberStore(info, timedelta(seconds=options.timeout))
        return comm

    def servers(self, count: int) -> list[dict[str, Any]]:
        """What every server says of itself; waits for them."""
        assert self._store is not None
        keys = [server_key(rank) for rank in range(count)]
        return [json.loads(text) for text in self._store.read(keys)]

    def open(self, info: ProcessInfo, patience: float, stop_requested: Callable[[], bool], run: Any) -> None:
        """Describe the run to the servers, and connect to them."""
        assert self._store is not None
        endpoints = [server["endpoint"] for server in self.servers(info.servers)]
        if info.launch is not None:
            write_servers(info.launch, file_stem(self.rank), endpoints)
        if self.rank == 0:
            self._store.set(RUN, json.dumps(run))
        self.connect(self._store.secret, endpoints, patience, stop_requested)
        if all(server.shares for server in self.client.servers):
            self.transport = "shm" if info.nodes == 1 else "shared memory and encrypted TCP"

    def connect(
        self,
        secret: Secret,
        endpoints: list[str],
        patience: float,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect and be known to all servers as this rank; the heartbeats to them begin here."""
        self.client = ServerClient(
            secret, endpoints, self.memory, patience=patience, stop_requested=stop_requested
        )
        self._connected = True
        # Before all have answered: a server that does so first must not take the wait for the others for a death.
        self.client.start_heartbeat(self.rank)
        self.client.ask_all(self.memory.hello(self.rank), messages.Welcome)
        self.memory.seal()

    def stop_agreement(self, note: Callable[[str], None]) -> StopByVote:
        """The servers decide; a worker that is asked to stop tells them with the next message that it sends."""
        return StopByVote(lambda: False, note, AT_SYNC_POINT, decided=lambda: self.client.stopping)

    def sum(self, tensor: Tensor) -> None:
        self._collective("sum", tensor)

    def minimum(self, tensor: Tensor) -> None:
        self._collective("min", tensor)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """That of the root, or of the first member where the root is gone."""
        self._collective("broadcast", tensor, root)

    def exchange(self, document: Any) -> list[Any]:
        if not self._connected and self._store is not None:
            return self._store.exchange(document)
        result = self._collective("gather", document=json.dumps(document))
        return [json.loads(text) for text in result.documents]

    @torch.no_grad()
    def _collective(
        self, op: messages.Collective, tensor: Tensor = messages.NO_TENSOR, root: int = 0, document: str = ""
    ) -> messages.Result:
        self.client.send(0, messages.Contribution(op, root, tensor.cpu().contiguous(), document))
        result: messages.Result = self.client.wait_for(messages.Result).message
        self.members = result.members
        tensor.copy_(result.tensor.view_as(tensor))
        return result

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return tensor.nbytes, tensor.nbytes

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In memory that servers on this host map."""
        return self.memory.zeros(length, dtype, device)

    def send(self, server: int, message: Any) -> None:
        self.client.send(server, message)

    def receive(self) -> Envelope:
        return self.client.wait_for(*MESSAGES)

    def save_shards(self, step: int) -> None:
        """All workers ask, so that none continues before."""
        self.client.ask_all(messages.SaveShard(step), messages.Reply)

    def server_totals(self) -> list[Any]:
        replies = self.client.ask_all(messages.GetTotals(), messages.Reply)
        return [json.loads(reply.document) for reply in replies]

    def finish(self, clock: int, how: str) -> None:
        for server in self.client.servers:
            self.client.send(server.number, messages.Goodbye(clock, how))
        self.client.close()

    def leave(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close without a message: the servers notice."""
        if self._connected:
            self.client.close()
        if self._store is not None:
            self._store.close()

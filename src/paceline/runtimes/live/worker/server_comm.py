"""The communicator of a run with servers: its connections to them, and collectives through server 0."""

import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.launch_folder import write_servers
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import BEAT, CONNECTING, GRACE, STALLED
from paceline.runtimes.live.wire import encoding, messages
from paceline.runtimes.live.wire.channel import Channel, Destination, connect
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.stopping import AT_SYNC_POINT, StopByVote
from paceline.runtimes.served_compression import SliceCodec
from paceline.strategies.base import server_slices
from paceline.strategies.effects import Peer
from paceline.strategies.messages import MESSAGES

RUN = "served/run"
"""The store's key under which rank 0 describes the run to the servers."""
_POLL = 0.25


def server_key(rank: int) -> str:
    return f"served/server-{rank}"


class ServerLost(ConnectionError):
    pass


class Expelled(ConnectionError):
    """The servers have expelled this worker; the run continues without it."""


class ServerClient:
    """Sends to all servers and receives from whichever answers first.

    Once a server's Welcome says that it maps the worker's memory, tensors that lie there do not travel. A Model is
    received right into the parameters of ``memory``, so a worker must not use those while it waits for one. A lost
    connection is not replaced: messages may be lost with it.
    """

    def __init__(
        self,
        secret: Secret,
        endpoints: Sequence[str],
        memory: SharedFlat,
        patience: float = 60.0,
        stop_requested: Callable[[], bool] = lambda: False,
        slices: Sequence[SliceCodec] = (),
    ) -> None:
        """``slices`` say how the messages of each server are encoded, where they are."""
        self.stopping = False
        self._memory, self._secret, self._endpoints = memory, secret.key("wire"), endpoints
        self._patience, self._stop_requested = patience, stop_requested
        self._received: deque[Envelope] = deque()
        self._closing = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self._channels: list[Channel] = []
        self._down: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        try:
            for server, shard in enumerate(server_slices(memory.params, len(endpoints))):
                codec = slices[server] if slices else None
                accepted = encoding.AcceptedMessages(kinds=messages.TO_WORKER, shard=shard, codec=codec)
                self._channels.append(self._connect(server, accepted))
                self._selector.register(self._channels[server].socket, selectors.EVENT_READ, server)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def shares(self) -> bool:
        return all(channel.memory for channel in self._channels)

    def _connect(self, server: int, accepted: encoding.AcceptedMessages) -> Channel:
        where = f"server {server} at {self._endpoints[server]}"
        announce = partial(self._announce, accepted)
        try:
            channel = connect(self._endpoints[server], self._secret, announce, accepted.limits, who=where)
        except OSError as error:
            raise self._lost(server, f"no connection within {CONNECTING:g} s ({error})") from None
        channel.peer = Peer("server", server)
        return channel

    def _lost(self, server: int, how: str = "connection closed by peer") -> ServerLost:
        return ServerLost(f"server {server} at {self._endpoints[server]} is lost: {how}")

    def start_heartbeat(self, rank: int) -> None:
        """While the process lives every server knows, whatever it is busy with.

        Over connections of their own: a server that closes one with unread beats loses what it has still to deliver
        there, and no beat may wait for a long message.
        """
        self._heartbeat = threading.Thread(target=self._beat, args=(rank,), daemon=True)
        self._heartbeat.start()

    def send(self, server: int, message: Any) -> None:
        """Send a message; its tensors must not change before the answer. ServerLost if that fails."""
        if server in self._down:
            raise self._lost(server)
        channel = self._channels[server]
        find = channel.memory.find if channel.memory else None
        try:
            channel.send(encoding.pack(message, stop=self._stop_requested(), find=find), 1, STALLED)
        except OSError as error:
            raise self._lost(server, str(error)) from None

    def receive(self, timeout: float) -> Envelope:
        if not self._received:
            self._read(timeout)
        return self._received.popleft()

    def _read(self, timeout: float) -> None:
        """Wait until a message has arrived."""
        end, before = time.monotonic() + timeout, len(self._received)
        while len(self._received) == before:
            now = time.monotonic()
            for server, since in self._down.items():
                if now - since > GRACE:
                    raise self._lost(server)
            if now >= end:
                raise ServerLost(f"no server has answered for {timeout:g} s")
            for key, _ in self._selector.select(min(_POLL, end - now)):
                try:
                    self._channels[key.data].read()
                except OSError:
                    self._down[key.data] = time.monotonic()
                    self._selector.unregister(key.fileobj)

    def wait_for(self, *kinds: type) -> Envelope:
        """The next message of one of these kinds; others are kept for later."""
        while True:
            for place, envelope in enumerate(self._received):
                if isinstance(envelope.message, (messages.Refusal, *kinds)):
                    del self._received[place]
                    return _check_refusal(envelope)
            self._read(self._patience)

    def send_all(self, message: Any) -> None:
        for server in range(len(self._channels)):
            self.send(server, message)

    def ask_all(self, message: Any, kind: type) -> list[Any]:
        self.send_all(message)
        replies = [self.wait_for(kind) for _ in self._channels]
        return [reply.message for reply in sorted(replies, key=lambda reply: reply.sender)]

    def close(self, linger: float = 1.0) -> None:
        """Close once the servers have closed too, or after ``linger`` seconds: they may not have read all yet."""
        self._closing.set()
        if self._heartbeat is not None:
            self._heartbeat.join(BEAT)  # it may still be connecting
        for channel in self._channels:
            with suppress(OSError):
                channel.socket.shutdown(socket.SHUT_WR)
        end = time.monotonic() + linger
        for server, channel in enumerate(self._channels):
            with suppress(OSError):
                while server not in self._down and (left := end - time.monotonic()) > 0:
                    channel.socket.settimeout(left)
                    if not channel.socket.recv(2**16):
                        break
            channel.close()
        self._channels.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announce(
        self, accepted: encoding.AcceptedMessages, channel: Channel, header: memoryview, size: int
    ) -> Destination:
        envelope, body = encoding.unpack(header, size, accepted, channel)
        return Destination(body, partial(self._take, envelope))

    def _take(self, envelope: Envelope) -> None:
        self.stopping = self.stopping or envelope.stop
        if isinstance(envelope.message, messages.Welcome) and envelope.message.shares:
            envelope.connection.memory = self._memory.mapped
        self._received.append(envelope)

    def _beat(self, rank: int) -> None:
        alive = encoding.pack(messages.Alive(rank))
        channels: list[Channel] = []
        for endpoint in self._endpoints:
            with suppress(OSError, UsageError):  # the worker notices itself
                channels.append(connect(endpoint, self._secret))
        closing = False
        while not closing:
            for channel in channels:
                with suppress(OSError):
                    channel.send(alive, most=1)
            closing = self._closing.wait(BEAT)
        for channel in channels:
            channel.close()


def _check_refusal(envelope: Envelope) -> Envelope:
    if isinstance(envelope.message, messages.Refusal):
        reason = envelope.message.reason
        if reason.startswith(messages.EXPELLED):
            raise Expelled(reason.removeprefix(messages.EXPELLED))
        raise UsageError(f"server {envelope.sender.rank} refuses this worker: {reason}")
    return envelope


class ServerComm(SoloComm):
    alone = False
    transport = "encrypted TCP"
    client: ServerClient

    def __init__(self, rank: int, workers: int, store: MemberStore | None = None) -> None:
        """Documents go through the store until ``connect``; a worker that joins has none."""
        self.rank, self.workers, self.members = rank, workers, tuple(range(workers))
        self.memory = SharedFlat()
        self._store, self._connected = store, False

    def servers(self, count: int) -> list[dict[str, Any]]:
        keys = [server_key(rank) for rank in range(count)]
        return [json.loads(text) for text in self.store.read(keys)]

    @property
    def store(self) -> MemberStore:
        """The run's; a worker that joins has none."""
        assert self._store is not None
        return self._store

    def post(self, key: str, document: Any) -> None:
        """Say something to the servers before ``open``, through the store."""
        self.store.set(key, json.dumps(document))

    def open(
        self,
        info: ProcessInfo,
        patience: float,
        stop_requested: Callable[[], bool],
        run: Any,
        slices: Sequence[SliceCodec] = (),
    ) -> None:
        assert self._store is not None
        endpoints = [server["endpoint"] for server in self.servers(info.servers)]
        if info.launch is not None:
            write_servers(info.launch, endpoints)
        if self.rank == 0:
            self._store.set(RUN, json.dumps(run))
        self.connect(self._store.secret, endpoints, patience, stop_requested, slices)
        if self.client.shares and not slices:
            self.transport = "shm" if info.nodes == 1 else "shared memory and encrypted TCP"

    def connect(
        self,
        secret: Secret,
        endpoints: list[str],
        patience: float,
        stop_requested: Callable[[], bool] = lambda: False,
        slices: Sequence[SliceCodec] = (),
    ) -> None:
        self.client = ServerClient(secret, endpoints, self.memory, patience, stop_requested, slices)
        self._connected = True
        # Before all have answered: a server that does so first must not take the wait for the others for a death.
        self.client.start_heartbeat(self.rank)
        self.client.ask_all(self.memory.hello(self.rank), messages.Welcome)
        self.memory.seal()

    def stop_agreement(self, note: Callable[[str], None]) -> StopByVote:
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
        return self.memory.zeros(length, dtype, device)

    def send(self, server: int, message: Any) -> None:
        self.client.send(server, message)

    def receive(self) -> Envelope:
        return self.client.wait_for(*MESSAGES)

    def save_shards(self, step: int) -> None:
        self.client.ask_all(messages.SaveShard(step), messages.Reply)

    def server_totals(self) -> list[Any]:
        replies = self.client.ask_all(messages.GetTotals(), messages.Reply)
        return [json.loads(reply.document) for reply in replies]

    def finish(self, clock: int, how: Literal["finished", "left"]) -> None:
        self.client.send_all(messages.Goodbye(self.rank, clock, how))
        self.client.close()

    def close(self, *, failed: bool = False) -> None:  # noqa: ARG002
        if self._connected:
            self.client.close()
        if self._store is not None:
            self._store.close()

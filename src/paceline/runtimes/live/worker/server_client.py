"""A worker's connections to all servers."""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.timeouts import BEAT, CONNECTING, GRACE, STALLED
from paceline.runtimes.live.wire import messages
from paceline.runtimes.live.wire.channel import (
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
    Envelope,
    bytes_of,
    check_body,
    new_memory,
    pack,
    unpack,
)
from paceline.runtimes.live.wire.noise import NotGenuine
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.strategies.base import server_slices
from paceline.strategies.messages import Model

_POLL = 0.25
"""Seconds between checks whether the servers are still there."""


class ServerLost(ConnectionError):
    """A server does not answer any more."""


class Expelled(ConnectionError):
    """The servers have expelled this worker; the run continues without it."""


class ServerConnection:
    """One server as a worker reaches it. A lost connection is not replaced: messages may be lost with it."""

    def __init__(self, number: int, endpoint: str) -> None:
        self.number, self.endpoint = number, endpoint
        self.shares = False
        """Whether the server maps this worker's memory."""
        self.channel: Channel
        self.down_at: float | None = None
        """When the connection was lost, by the monotonic clock."""

    def connect(self, secret: bytes, announce: Callable[..., Destination], limits: MessageLimits) -> None:
        """ServerLost if there is no answer, and a UsageError where the secret or the version is wrong."""
        try:
            self.channel = connect(self.endpoint, secret, announce, limits)
        except OtherVersion:
            raise UsageError(
                f"server {self.number} at {self.endpoint} runs another version of paceline; "
                "install the same on every host"
            ) from None
        except NotGenuine:
            raise UsageError(
                f"server {self.number} at {self.endpoint} does not accept this worker's secret; give the same "
                "secret file on every host"
            ) from None
        except OSError as error:
            raise self.lost(f"no connection within {CONNECTING:g} s ({error})") from None

    def send(self, packet: Packet) -> None:
        if self.down_at is not None:
            raise self.lost("connection closed by peer")
        try:
            self.channel.send(packet, 1, STALLED)
        except OSError as error:
            raise self.lost(str(error)) from None

    def read(self) -> bool:
        """Read what has arrived; False if this is the end of the connection."""
        try:
            self.channel.read()
        except OSError:
            self.down_at = time.monotonic()
        return self.down_at is None

    def check(self) -> None:
        if self.down_at is not None and time.monotonic() - self.down_at > GRACE:
            raise self.lost("connection closed by peer")

    def lost(self, how: str) -> ServerLost:
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
        self._memory, self._secret = memory, wire_key(secret)
        self._patience, self._stop_requested = patience, stop_requested
        self._received: deque[Envelope] = deque()
        self._later: deque[Envelope] = deque()
        self._heartbeat: HeartbeatSender | None = None
        self._servers: list[ServerConnection] = []
        self._selector = selectors.DefaultSelector()
        size = 0 if memory.params is None else memory.params.nbytes
        try:
            for number, endpoint in enumerate(endpoints):
                self._connect(number, endpoint, MessageLimits(2 * MAX_REPLY, 2 * max(MAX_TENSOR, size)))
        except BaseException:
            self.close(0.0)
            raise

    @property
    def shares(self) -> bool:
        """Whether all servers map this worker's memory."""
        return all(server.shares for server in self._servers)

    def start_heartbeat(self, rank: int) -> None:
        self._heartbeat = HeartbeatSender([server.endpoint for server in self._servers], self._secret, rank)

    def send(self, server: int, message: Any) -> None:
        """Send a message; its tensors must not change before the answer. ServerLost if that fails."""
        connection = self._servers[server]
        find = self._memory.find if connection.shares else lambda _: None
        connection.send(pack(message, stop=self._stop_requested(), find=find))

    def send_all(self, message: Any) -> None:
        for server in self._servers:
            self.send(server.number, message)

    def receive(self, timeout: float) -> Envelope:
        """The next message of any server; TimeoutError if none arrives within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while not self._received:
            for server in self._servers:
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
                raise UsageError(f"server {envelope.sender} refuses this worker: {reason}")
            if isinstance(envelope.message, kinds):
                return envelope
            self._later.append(envelope)

    def gather(self, kind: type) -> list[Any]:
        """One message of this kind from every server, by rank."""
        replies = [self.wait_for(kind) for _ in self._servers]
        return [reply.message for reply in sorted(replies, key=lambda reply: reply.sender)]

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has been read or after ``linger`` seconds."""
        if self._heartbeat is not None:
            self._heartbeat.close()
        for server in self._servers:
            with suppress(OSError):
                server.channel.socket.shutdown(socket.SHUT_WR)
        end = time.monotonic() + linger
        for server in self._servers:
            server.close(end)
        self._servers.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, number: int, endpoint: str, limits: MessageLimits) -> None:
        server = ServerConnection(number, endpoint)

        def announce(_: Channel, header: memoryview, size: int) -> Destination:
            shard = self._shard(number)
            accepted = Accepted(
                kinds=messages.TO_WORKER,
                length=0 if shard is None else shard.numel(),
                dtype=torch.float32 if shard is None else shard.dtype,
            )

            def allocate(kind: type, length: int, dtype: torch.dtype) -> Tensor:
                in_place = kind is Model and shard is not None and shard.device.type == "cpu"
                return shard if in_place and shard is not None else new_memory(kind, length, dtype)

            envelope, body = unpack(header, size, accepted, self._memory, allocate)
            return Destination(
                bytes_of(body), lambda: self._take(server, envelope._replace(sender=number), body)
            )

        server.connect(self._secret, announce, limits)
        self._servers.append(server)
        self._selector.register(server.channel.socket, selectors.EVENT_READ, server)

    def _take(self, server: ServerConnection, envelope: Envelope, body: Tensor) -> None:
        check_body(body)
        if isinstance(envelope.message, messages.Welcome):
            server.shares = envelope.message.shares
        self._received.append(envelope)

    def _shard(self, server: int) -> Tensor | None:
        """The parameters that a server keeps, as this worker has them."""
        params = self._memory.params
        return None if params is None else server_slices(params, len(self._servers))[server]


class HeartbeatSender:
    """A thread with connections of its own: while the process lives every server knows, whatever it is busy with."""

    def __init__(self, endpoints: Sequence[str], secret: bytes, rank: int) -> None:
        self._endpoints, self._secret = endpoints, secret
        self._alive = pack(messages.Alive(rank))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(BEAT)  # it may still be connecting

    def _run(self) -> None:
        channels: list[Channel] = []
        for endpoint in self._endpoints:
            with suppress(OSError):  # the worker notices itself
                channels.append(connect(endpoint, self._secret))
        while True:
            for channel in channels:
                with suppress(OSError):  # a server that is gone or late needs no more than is queued already
                    channel.flush()
                    channel.send(self._alive, most=1)
            if self._closing.wait(BEAT):
                break
        for channel in channels:
            channel.close()

"""A worker's end of the wire: one connection a server."""

import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.wire import encoding as wire
from paceline.runtimes.live.wire.channel import Channel, Landing, Limits
from paceline.runtimes.live.wire.control import Welcome
from paceline.runtimes.live.wire.encoding import LIMIT, Announced, Expected
from paceline.runtimes.live.wire.kinds import LONGEST_ANSWER
from paceline.runtimes.live.wire.memory import SharedFlat
from paceline.runtimes.live.wire.shape import Shape
from paceline.runtimes.live.worker.links import Link, ServerLost
from paceline.runtimes.live.worker.pulse import Pulse
from paceline.strategies.base import server_slices
from paceline.strategies.messages import Model

__all__ = ["Arrival", "ServerLost", "WorkerSockets"]

_GLANCE = 0.25
"""Seconds between looks at whether the servers are still there."""


class Arrival(NamedTuple):
    """A message that has come."""

    server: int
    flags: int
    message: Any


class WorkerSockets:
    """Sends to all servers and receives from whichever speaks first.

    Once a server's Welcome says that it shares the worker's memory, tensors that lie there do not travel. A Model is
    received right into the parameters of ``memory``, so a worker must not use those while it waits for one.
    """

    def __init__(
        self, secret: Secret, endpoints: Sequence[str], memory: SharedFlat, limit: int = LIMIT
    ) -> None:
        """Connect to all servers; ServerLost if one does not answer, and a UsageError where the secret is wrong."""
        self._memory, self._limit = memory, limit
        self._secret, self._endpoints = wire_key(secret), list(endpoints)
        self._arrived: deque[Arrival] = deque()
        self._pulse: Pulse | None = None
        self._links: list[Link] = []
        self._selector = selectors.DefaultSelector()
        size = 0 if memory.params is None else memory.params.nbytes
        try:
            for number, endpoint in enumerate(endpoints):
                self._connect(number, endpoint, Limits(2 * LONGEST_ANSWER, 2 * max(limit, size)))
        except BaseException:
            self.close(0.0)
            raise

    def begin_pulse(self, rank: int) -> None:
        """From now on the servers hear twice a second that this worker lives."""
        assert self._pulse is None, "a worker has one pulse"
        self._pulse = Pulse(self._endpoints, self._secret, rank)

    def send(self, server: int, message: Any, flags: int = 0) -> None:
        """Hand a message over; its tensors must not change before it is answered. ServerLost if that cannot be."""
        link = self._links[server]
        link.send(wire.pack(message, flags, self._memory.find if link.shares else wire.nowhere))

    def receive(self, timeout: float) -> Arrival:
        """The next message of any server; TimeoutError if none comes within so many seconds."""
        end = time.monotonic() + timeout
        while not self._arrived:
            for link in self._links:
                link.check()
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no server has answered for {timeout:g} s")
            for key, _ in self._selector.select(min(_GLANCE, left)):
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
        return self._arrived.popleft()

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has been read or so many seconds are over."""
        if self._pulse is not None:
            self._pulse.close()
        for link in self._links:
            with suppress(OSError):
                link.channel.socket.shutdown(socket.SHUT_WR)
        end = time.monotonic() + linger
        for link in self._links:
            _await_end(link, end)
            link.channel.close()
        self._links.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, number: int, endpoint: str, limits: Limits) -> None:
        def announce(_: Channel, header: memoryview, size: int) -> Landing:
            announced = wire.announce(
                header, size, self._expected(number), self._memory, lambda *what: self._landing(number, *what)
            )
            return Landing(wire.bytes_of(announced.body), lambda: self._take(number, announced))

        link = Link(number, endpoint, self._secret, announce, limits)
        self._links.append(link)
        self._selector.register(link.channel.socket, selectors.EVENT_READ, link)

    def _landing(self, server: int, kind: type, length: int, dtype: torch.dtype) -> Tensor:
        part = self._part(server) if kind is Model else None
        return wire.new_memory(kind, length, dtype) if part is None or part.device.type != "cpu" else part

    def _take(self, server: int, announced: Announced) -> None:
        announced.check()
        flags, message = announced.letter
        if isinstance(message, Welcome):
            self._links[server].shares = message.shares
        self._arrived.append(Arrival(server, flags, message))

    def _expected(self, server: int) -> Expected:
        part = self._part(server)
        shape = (
            Shape(length=0, dtype=torch.float32)
            if part is None
            else Shape(length=part.numel(), dtype=part.dtype)
        )
        return Expected.at_worker(shape, self._limit)

    def _part(self, server: int) -> Tensor | None:
        """The parameters that a server keeps, as this worker has them."""
        params = self._memory.params
        return None if params is None else server_slices(params, len(self._links))[server]


def _await_end(link: Link, end: float) -> None:
    """Until the server has read everything and closes too: what it has not read could go with the connection."""
    with suppress(OSError):
        while link.down_at is None and (left := end - time.monotonic()) > 0:
            link.channel.socket.settimeout(left)
            if not link.channel.socket.recv(2**16):
                return

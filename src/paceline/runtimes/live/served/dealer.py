"""A worker's end of the wire: one DEALER socket a server."""

import time
from collections.abc import Sequence
from math import ceil
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import zmq
from torch import Tensor

from paceline.runtimes.live.served import wire
from paceline.runtimes.live.served.control import Welcome
from paceline.runtimes.live.served.keys import Secret, server_keys, worker_keys
from paceline.runtimes.live.served.links import Link, ServerLost, dealer
from paceline.runtimes.live.served.memory import SharedFlat
from paceline.runtimes.live.served.pulse import Pulse
from paceline.runtimes.live.served.shape import Shape
from paceline.runtimes.live.served.wire import Expected
from paceline.strategies.base import parts
from paceline.strategies.messages import Model

__all__ = ["Arrival", "ServerLost", "WorkerSockets"]

LIMIT = 2**28
"""Bytes of a collective's tensor."""
_HANDED_OVER = 10.0
"""Seconds within which a server must take a message."""
_GLANCE = 250
"""Milliseconds between looks at whether the servers are still there."""


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
        self._memory, self._limit = memory, limit
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._server_key, self._own = server_keys(secret).public, worker_keys(secret)
        self._endpoints = list(endpoints)
        self._links = [
            Link(number, endpoint, dealer(self._context, endpoint, self._server_key, self._own))
            for number, endpoint in enumerate(endpoints)
        ]
        self._poller = zmq.Poller()
        for link in self._links:
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.events, zmq.POLLIN)
        self._pulse: Pulse | None = None
        self._next = 0

    def begin_pulse(self, rank: int) -> None:
        """From now on the servers hear twice a second that this worker lives."""
        assert self._pulse is None, "a worker has one pulse"
        self._pulse = Pulse(self._context, self._endpoints, self._server_key, self._own, rank)

    def send(self, server: int, message: Any, flags: int = 0) -> None:
        """Hand a message over; its tensors must not change before it is answered. ServerLost if that cannot be."""
        link = self._links[server]
        frames = wire.pack(message, flags, self._memory.find if link.shares else wire.nowhere)
        end = time.monotonic() + _HANDED_OVER
        while True:
            link.watch()
            if link.down:
                raise link.lost("connection closed by peer")
            try:
                link.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
                return
            except zmq.Again:
                link.socket.poll(_GLANCE, zmq.POLLOUT)
            if time.monotonic() > end:
                raise link.lost(f"it took nothing for {_HANDED_OVER:g} s (socket timeout)")

    def receive(self, timeout: float) -> Arrival:
        """The next message of any server; TimeoutError if none comes within so many seconds."""
        end = time.monotonic() + timeout
        while True:
            for link in self._in_turn():
                try:
                    frames = link.socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    continue
                self._next = link.number + 1
                return self._open(link, [frame.buffer for frame in frames])
            for link in self._links:
                link.watch()
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no server has answered for {timeout:g} s")
            self._poller.poll(min(_GLANCE, ceil(left * 1000)))

    def close(self, linger: float = 1.0) -> None:
        """Close, once what was sent has gone out or so many seconds are over."""
        if self._context.closed:
            return
        if self._pulse is not None:
            self._pulse.close()
        for link in self._links:
            link.close(linger)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_turn(self) -> list[Link]:
        """All servers, so that none has to wait for another that keeps talking."""
        return self._links[self._next :] + self._links[: self._next]

    def _open(self, link: Link, frames: list[wire.Frame]) -> Arrival:
        def landing(kind: type, length: int, dtype: torch.dtype) -> Tensor:
            part = self._part(link.number) if kind is Model else None
            return wire.new_memory(kind, length, dtype) if part is None or part.device.type != "cpu" else part

        flags, message = wire.unpack(frames, self._expected(link.number), self._memory, landing)
        if isinstance(message, Welcome):
            link.shares = message.shares
        return Arrival(link.number, flags, message)

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
        return None if params is None else parts(params, len(self._links))[server]

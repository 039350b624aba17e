"""What a process that serves others is built on: their connections, kept by a thread of their own."""

import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Self

from paceline.runtimes.live.addresses import resolve, tcp
from paceline.runtimes.live.timeouts import CUT, HANDSHAKE
from paceline.runtimes.live.wire.channel import Channel, Destination, MessageLimits, Packet, tune_tcp
from paceline.runtimes.live.wire.noise import NotGenuine

MOST_UNPROVEN = 128
"""Connections that may be open without having proven it, so that strangers cannot take all descriptors."""
_POLL = 0.25


class Listener:
    """Only messages of connections that have proven the secret reach ``announce``.

    The listener's own thread calls it, and nothing else writes to ``refused``. It may do so before this constructor
    has returned: a subclass calls it last.
    """

    def __init__(
        self, secret: bytes, host: str, port: int, limits: MessageLimits, cut: int = CUT, linger: float = 1.0
    ) -> None:
        """``linger`` is for how many seconds what is queued may still be sent when it closes."""
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._secret, self._limits, self._cut, self._linger = secret, limits, cut, linger
        family, address = resolve(host, port)
        self._socket = socket.create_server((address, port), family=family, backlog=MOST_UNPROVEN)
        self._socket.setblocking(False)
        self.endpoint = tcp(address, self._socket.getsockname()[1])
        self._channels: set[Channel] = set()
        self._unproven: dict[Channel, float] = {}
        """By when each has to prove itself, oldest first."""
        self._to_flush: deque[Channel] = deque()
        self._end: float | None = None
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="paceline-listener", daemon=True)
        self._thread.start()

    def announce(self, channel: Channel, header: memoryview, size: int) -> Destination:
        raise NotImplementedError

    def deliver(self, channel: Channel, packet: Packet, most: int) -> bool:
        """False: the connection is gone, or ``most`` messages are queued for it."""
        if channel not in self._channels:
            return False
        try:
            accepted = channel.send(packet, most)
        except OSError:
            return False  # the thread notices too
        if channel.unsent:
            self._to_flush.append(channel)
            os.eventfd_write(self._waker, 1)
        return accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._end is None:
            self._end = time.monotonic() + self._linger
            os.eventfd_write(self._waker, 1)
            self._thread.join()
            self._selector.close()
            self._socket.close()
            os.close(self._waker)

    def _run(self) -> None:
        try:
            while not self._is_over():
                for key, events in self._selector.select(_POLL):
                    if key.fileobj is self._socket:
                        self._accept()
                    elif key.data in self._channels:  # not dropped since it was found ready
                        self._serve(key.data, events)
                self._maintain()
        except BaseException as error:
            self.failure = error
        for channel in self._channels:
            channel.close()

    def _is_over(self) -> bool:
        if self._end is None:
            return False
        return time.monotonic() > self._end or not any(channel.unsent for channel in self._channels)

    def _maintain(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._waker)
        while self._to_flush:
            channel = self._to_flush.popleft()
            if channel in self._channels:
                self._selector.modify(channel.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, channel)
        now = time.monotonic()
        for channel in [channel for channel, end in self._unproven.items() if end < now]:
            self._drop(channel)

    def _accept(self) -> None:
        for _ in range(MOST_UNPROVEN):
            try:
                connection, _ = self._socket.accept()
            except OSError:  # there is none, or it has gone, or there is no descriptor left
                return
            tune_tcp(connection, self._cut)
            channel = Channel(connection, self.announce, self._limits)
            channel.answer(self._secret)
            self._channels.add(channel)
            self._unproven[channel] = time.monotonic() + HANDSHAKE
            self._selector.register(connection, selectors.EVENT_READ, channel)
            if len(self._unproven) > MOST_UNPROVEN:
                # The oldest that has shown nothing of the secret yet, so that a flood shuts out no member.
                silent = (one for one in self._unproven if not one.greeted)
                self._drop(next(silent, next(iter(self._unproven))))

    def _serve(self, channel: Channel, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and channel.flush():
                self._selector.modify(channel.socket, selectors.EVENT_READ, channel)
            if events & selectors.EVENT_READ:
                channel.heard = time.monotonic()
                channel.read()
        except OSError as error:
            self._drop(channel, error)
        if channel.proven:
            self._unproven.pop(channel, None)

    def _drop(self, channel: Channel, error: OSError | None = None) -> None:
        if self._unproven.pop(channel, None) is not None and not channel.proven:
            self.refused["wrong key" if isinstance(error, NotGenuine) else "stranger"] += 1
        self._channels.discard(channel)
        self._selector.unregister(channel.socket)
        channel.close()

"""One encrypted connection: a handshake, then messages in sealed records over TCP.

A message is a record with its two lengths, its header and its body, each cut into records of RECORD bytes; so both
sides always know how long the next record is, and no length travels in the clear. A side that has not proven that it
has the secret is sent one message of the handshake and costs the memory of one.
"""

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.runtimes.live.timeouts import CONNECTING, CUT, RETRY
from paceline.runtimes.live.wire.noise import MESSAGE, TAG, BytesLike, Cipher, Handshake, NotGenuine
from paceline.runtimes.live.wire.shared_flat import MappedFlat
from paceline.strategies.effects import Peer

_ANY_VERSION = b"paceline wire "
PROLOGUE = _ANY_VERSION + b"8\n"
"""What the first message begins with, in the clear; the number is the version of everything that is sent."""
REFUSED = b"paceline: another secret\n".ljust(MESSAGE, b"\0")
OTHER_VERSION = b"paceline: another version\n".ljust(MESSAGE, b"\0")
RECORD = 2**18
"""Bytes of a message in a record: few calls, and what is sealed is still in the processor's cache when it is sent."""
_LENGTHS = struct.Struct("<IQ")
_TURN = 32


class Packet(NamedTuple):
    header: bytes
    body: memoryview


class MessageLimits(NamedTuple):
    """Bytes that a message may have; a larger one ends the connection."""

    header: int
    body: int


NOTHING = MessageLimits(0, 0)


class Destination(NamedTuple):
    """Where the body of a message is received, and what is called once it is complete. No memory: it is dropped."""

    memory: memoryview | None
    complete: Callable[[], None]


Announce = Callable[["Channel", memoryview, int], Destination]


DROPPED = Destination(None, lambda: None)


def drop_all(_: "Channel", __: memoryview, ___: int) -> Destination:
    return DROPPED


class Channel:
    """One end. One thread reads, and never waits; any may send."""

    def __init__(
        self, connection: socket.socket, announce: Announce = drop_all, limits: MessageLimits = NOTHING
    ) -> None:
        self.socket = connection
        self.greeted = False
        """Whether the other side has sent a first message that was made with the secret, now or earlier."""
        self.proven = False
        """Whether the other side has the secret, beyond doubt."""
        self.peer = Peer("worker", -1)
        """Who is at the other end; of rank -1 where a server does not know."""
        self.memory: MappedFlat | None = None
        """The worker's memory, where both ends map it."""
        self.waiting, self.heard = 0, 0.0
        """Of a server's end: messages that the server has not taken yet, and when its worker was heard."""
        self._announce, self._limits = announce, limits
        self._buffer, self._have, self._want = memoryview(bytearray(MESSAGE)), 0, 0
        self._reading: Generator[int, memoryview, None]
        self._sealing: Cipher
        self._sending = threading.Lock()
        self._scratch = memoryview(b"")
        self._unsent: deque[deque[memoryview]] = deque()
        """The sealed records that the system has not accepted, by message."""

    def call(self, secret: bytes) -> None:
        """Of the side that has connected: prove the secret and verify the other's, or NotGenuine."""
        handshake = Handshake(secret, PROLOGUE)
        self.socket.sendall(PROLOGUE + handshake.write())
        with self.socket.makefile("rb") as file:
            answer = file.read(MESSAGE)
        if len(answer) < MESSAGE:
            raise ConnectionError("connection closed by peer")
        if answer == REFUSED:
            raise NotGenuine("does not take this process's secret; give every host the same secret file")
        if answer == OTHER_VERSION:
            raise NotGenuine("runs another version of paceline; install the same on every host")
        handshake.read(answer)
        self._sealing, opening = handshake.split()
        self.socket.sendall(self._sealing.seal(b""))  # the proof: the first message may be sent much later
        self.greeted = self.proven = True
        self._begin(self._messages(opening))

    def answer(self, secret: bytes) -> None:
        """Of the side that was connected to: the handshake proceeds as the other side's messages are read."""
        self._begin(self._greeted(secret))

    def read(self) -> None:
        for _ in range(_TURN):
            try:
                got = self.socket.recv_into(self._buffer[self._have : self._want])
            except BlockingIOError:
                return
            if not got:
                raise ConnectionError("connection closed by peer")
            self._have += got
            if self._have == self._want:
                self._expect(self._reading.send(self._buffer[: self._want]))

    def send(self, packet: Packet, most: int, patience: float = 0.0) -> bool:
        """Send a message; its body may change at once. False: ``most`` messages are queued already.

        What the system does not accept is queued, sealed, for ``flush``; with patience, this waits instead, and
        raises ConnectionError if nothing is accepted for ``patience`` seconds.
        """
        header, body = packet
        with self._sending:
            self._flush(patience)
            if len(self._unsent) >= most:
                return False
            # In one call up to the body: two would wake the other side twice.
            start = (_LENGTHS.pack(len(header), len(body)), *_records(header))
            rest = memoryview(b"".join([self._sealing.seal(plain) for plain in start]))
            if not self._unsent:
                rest = self._write(rest, patience)
            left = deque([rest] if rest else [])
            for plain in _records(body):
                if left or self._unsent:
                    left.append(memoryview(self._sealing.seal(plain)))
                elif rest := self._write(self._sealed(plain), patience):
                    left.append(memoryview(bytes(rest)))
            if left:
                self._unsent.append(left)
            return True

    def flush(self) -> bool:
        with self._sending:
            self._flush(0.0)
            return not self._unsent

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with self._sending:  # a descriptor that another thread writes to must not become another connection's
            self.socket.close()

    def _begin(self, reading: Generator[int, memoryview, None]) -> None:
        self.socket.setblocking(False)
        self._reading = reading
        self._expect(next(reading))

    def _expect(self, want: int) -> None:
        if want > len(self._buffer):
            self._buffer = memoryview(bytearray(want))
        self._have, self._want = 0, want

    def _greeted(self, secret: bytes) -> Generator[int, memoryview, None]:
        prologue = yield len(PROLOGUE)
        if prologue != PROLOGUE:
            if bytes(prologue).startswith(_ANY_VERSION):
                yield MESSAGE  # to close before it is read could take the answer away again
                self.socket.send(OTHER_VERSION)
            raise ConnectionError("another protocol")
        handshake = Handshake(secret, PROLOGUE)
        try:
            handshake.read(bytes((yield MESSAGE)))
            self.greeted = True
            second = handshake.write()
        except NotGenuine:
            self.socket.send(REFUSED)
            raise
        self.socket.send(second)  # the first bytes of a connection: the system takes them
        opening, self._sealing = handshake.split()
        opening.open((yield TAG))
        self.proven = True
        yield from self._messages(opening)

    def _messages(self, opening: Cipher) -> Generator[int, memoryview, None]:
        while True:
            header, body = _LENGTHS.unpack(opening.open((yield _LENGTHS.size + TAG)))
            if header > self._limits.header or body > self._limits.body:
                raise ConnectionError("a message that is far too large")
            announcement = memoryview(bytearray(header))
            yield from _into(announcement, header, opening)
            destination = self._announce(self, announcement, body)
            yield from _into(destination.memory, body, opening)
            destination.complete()

    def _sealed(self, plain: BytesLike) -> memoryview:
        size = len(plain) + TAG
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(size))
        self._sealing.seal_into(self._scratch[:size], plain)
        return self._scratch[:size]

    def _flush(self, patience: float) -> None:
        while self._unsent:
            records = self._unsent[0]
            while records:
                records[0] = self._write(records[0], patience)
                if records[0]:
                    return
                records.popleft()
            self._unsent.popleft()

    def _write(self, record: memoryview, patience: float) -> memoryview:
        while record:
            try:
                record = record[self.socket.send(record) :]
            except BlockingIOError:
                if not patience:
                    break
                poller = select.poll()
                poller.register(self.socket, select.POLLOUT)
                if not poller.poll(round(1000 * patience)):
                    raise ConnectionError(
                        f"it accepted nothing for {patience:g} s (socket timeout)"
                    ) from None
        return record


def connect(
    endpoint: str,
    secret: bytes,
    announce: Announce = drop_all,
    limits: MessageLimits = NOTHING,
    patience: float = CONNECTING,
    cut: int = CUT,
    who: str = "",
) -> Channel:
    """UsageError: ``who`` has another secret or version; OSError: no answer within ``patience`` seconds."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    end = time.monotonic() + patience
    while True:
        try:
            left = max(RETRY, end - time.monotonic())
            channel = Channel(socket.create_connection((host.strip("[]"), int(port)), left), announce, limits)
            try:
                tune_tcp(channel.socket, cut)
                # For this side only: a server always reads, but a worker may be busy.
                channel.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * cut)
                channel.call(secret)
                return channel
            except BaseException:
                channel.close()
                raise
        except NotGenuine as refused:
            raise UsageError(f"{who or endpoint} {refused}") from None
        except OSError:  # a server under attack may have shut this out, one of many that were unproven
            if time.monotonic() + RETRY > end:
                raise
            time.sleep(RETRY)


def tune_tcp(connection: socket.socket, cut: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, max(1, cut // 4)),
        (socket.TCP_KEEPINTVL, max(1, cut // 4)),
        (socket.TCP_KEEPCNT, 4),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _records(plain: BytesLike) -> Iterator[BytesLike]:
    return (plain[at : at + RECORD] for at in range(0, len(plain), RECORD))


def _into(memory: memoryview | None, size: int, opening: Cipher) -> Generator[int, memoryview, None]:
    for at in range(0, size, RECORD):
        length = min(RECORD, size - at)
        record = yield length + TAG
        if memory is None:
            opening.open(record)
        else:
            opening.open_into(memory[at : at + length], record)

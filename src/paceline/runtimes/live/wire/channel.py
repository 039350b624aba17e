"""One encrypted connection: a handshake, then messages in sealed records over TCP.

A message is a record with its two lengths, its header and its body, each cut into records of RECORD bytes; so both
sides always know how long the next record is, and no length travels in the clear. A side that has not proven that it
has the secret is sent one message of the handshake and costs the memory of one.
"""

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import NamedTuple

from paceline.runtimes.live.wire.noise import MESSAGE, TAG, Cipher, Handshake, NotGenuine

PROLOGUE = b"paceline wire 3\n"
"""What the first message begins with, in the clear: whoever sends something else speaks another protocol."""
_ANY_VERSION = b"paceline wire "
REFUSED = b"paceline: another secret\n".ljust(MESSAGE, b"\0")
"""What a server answers to a first message that was made with another secret."""
OTHER_VERSION = b"paceline: another version\n".ljust(MESSAGE, b"\0")
"""What it answers to a prologue that is another version's."""
RECORD = 2**18
"""Bytes of a message in a record: few calls, and what is sealed is still in the processor's cache when it is sent."""
_LENGTHS = struct.Struct("<IQ")
_TURN = 32
"""System calls for one connection before the others have their turn."""


class Limits(NamedTuple):
    """Bytes that a message may have; more than that ends the connection."""

    header: int
    body: int


NOTHING = Limits(0, 0)


class Landing(NamedTuple):
    """Where the body of a message goes, and what is called when it is there. No memory: it is dropped."""

    memory: memoryview | None
    arrived: Callable[[], None]


Announce = Callable[["Channel", memoryview, int], Landing]
"""Asked, when a message's header has come, where so many bytes of its body go."""


def drop_all(_: "Channel", __: memoryview, ___: int) -> Landing:
    """For an end that only speaks."""
    return Landing(None, lambda: None)


class OtherVersion(NotGenuine):
    """The other side speaks another version of this protocol."""


class Stalled(ConnectionError):
    """The other side takes nothing any more."""


class Channel:
    """One end. One thread reads, and never waits; any may send."""

    def __init__(
        self, connection: socket.socket, announce: Announce = drop_all, limits: Limits = NOTHING
    ) -> None:
        self.socket = connection
        self.greeted = False
        """Whether the other side has sent a first message that was made with the secret, now or earlier."""
        self.proven = False
        """Whether the other side has the secret, beyond doubt."""
        self._announce, self._limits = announce, limits
        self._buffer, self._have, self._want = memoryview(bytearray(MESSAGE)), 0, 0
        self._reading: Generator[int, memoryview, None]
        self._sealing: Cipher
        self._sending = threading.Lock()
        self._scratch = memoryview(b"")
        self._unsent: deque[deque[bytes]] = deque()
        """What the system has not taken yet, by message."""

    def call(self, secret: bytes) -> None:
        """Be the side that has connected: prove the secret and have it proven. NotGenuine if that cannot be."""
        handshake = Handshake(secret, PROLOGUE)
        self.socket.sendall(PROLOGUE + handshake.write_first())
        answer = _receive(self.socket, MESSAGE)
        if answer == REFUSED:
            raise NotGenuine("the server has another secret")
        if answer == OTHER_VERSION:
            raise OtherVersion("the server has another version")
        handshake.read_second(answer)
        self._sealing, opening = handshake.split()
        self.socket.sendall(
            self._sealing.seal(b"")
        )  # the proof at once: the first message may come much later
        self.greeted = self.proven = True
        self.socket.setblocking(False)
        self._begin(self._messages(opening))

    def answer(self, secret: bytes) -> None:
        """Be the side that was connected to; the handshake goes on as the other side's messages are read."""
        self.socket.setblocking(False)
        self._begin(self._greeted(secret))

    def read(self) -> None:
        """Take what has come. ConnectionError: this is the end of the connection."""
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

    def send(self, header: bytes, body: memoryview, most: int, patience: float = 0.0) -> bool:
        """Send a message; the body may change at once. False: ``most`` messages wait for the other side already.

        What the system does not take is kept, sealed, for ``flush``; with patience, it is waited for instead, and
        Stalled if it takes nothing for so many seconds.
        """
        with self._sending:
            if len(self._unsent) >= most:
                return False
            kept: deque[bytes] = deque()
            for plain in (_LENGTHS.pack(len(header), len(body)), header, body):
                for at in range(0, len(plain), RECORD):
                    self._send_record(plain[at : at + RECORD], kept, patience)
            if kept:
                self._unsent.append(kept)
            return True

    def flush(self) -> bool:
        """Send what was kept; whether all of it is gone."""
        with self._sending:
            while self._unsent:
                kept = self._unsent[0]
                while kept:
                    record = kept.popleft()
                    if left := self._write(memoryview(record), 0.0):
                        kept.appendleft(bytes(left))
                        return False
                self._unsent.popleft()
            return True

    @property
    def unsent(self) -> bool:
        """Whether something waits for ``flush``."""
        return bool(self._unsent)

    def close(self) -> None:
        """End the connection at once; may be called by any thread, while others use the channel."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with (
            self._sending
        ):  # a descriptor that another thread writes to must not come to mean another connection
            self.socket.close()

    def _begin(self, reading: Generator[int, memoryview, None]) -> None:
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
            handshake.read_first(bytes((yield MESSAGE)))
            self.greeted = True
            second = handshake.write_second()
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
            landing = self._announce(self, announcement, body)
            yield from _into(landing.memory, body, opening)
            landing.arrived()

    def _send_record(self, plain: bytes | memoryview, kept: deque[bytes], patience: float) -> None:
        if kept or self._unsent:
            kept.append(self._sealing.seal(plain))
            return
        size = len(plain) + TAG
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(size))
        record = self._scratch[:size]
        self._sealing.seal_into(record, plain)
        if left := self._write(record, patience):
            kept.append(bytes(left))

    def _write(self, record: memoryview, patience: float) -> memoryview:
        """Hand a record over; what the system does not take."""
        while record:
            try:
                record = record[self.socket.send(record) :]
            except BlockingIOError:
                if not patience:
                    break
                if not _writable(self.socket, patience):
                    raise Stalled(f"it took nothing for {patience:g} s (socket timeout)") from None
        return record


def _into(memory: memoryview | None, size: int, opening: Cipher) -> Generator[int, memoryview, None]:
    """Read so many bytes that were sealed in records."""
    for at in range(0, size, RECORD):
        length = min(RECORD, size - at)
        record = yield length + TAG
        if memory is None:
            opening.open(record)
        else:
            opening.open_into(memory[at : at + length], record)


def _receive(connection: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size:
        more = connection.recv(size - len(answer))
        if not more:
            raise ConnectionError("connection closed by peer")
        answer += more
    return answer


def _writable(connection: socket.socket, patience: float) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLOUT)
    return bool(poller.poll(round(1000 * patience)))

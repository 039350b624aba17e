"""CURVE authentication: only connections that prove to have the run's secret get in. The others are counted."""

import os
import resource
import socket as sockets
import struct
import threading
from collections import Counter
from contextlib import suppress

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

HANDSHAKE = 5_000
"""Milliseconds that a connection has to prove itself."""
MOST_UNPROVEN = 128
"""Connections that may be about to prove themselves; above that the oldest are shut down."""
_MOST_DESCRIPTORS = 65_536
_ZAP = "inproc://zeromq.zap.01"
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_WATCHED = _FAILED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_READY = 64 + 170 + 32
"""Bytes of a server's greeting, its WELCOME and the shortest READY, which it sends to whom it believes and to nobody
else; an ERROR is shorter. What a client has sent says nothing, for it can send anything."""
_SENT_AT, _INFO = 200, 216
"""Where struct tcp_info has tcpi_bytes_sent and tcpi_bytes_retrans, and how much of it is read (Linux 4.19)."""


def raise_descriptor_limit() -> None:
    """Let this process, and whatever it starts, open as many files as the system allows it to, up to 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class CurveAuthenticator:
    """A thread that answers ZeroMQ's questions about clients' keys (RFC 27) and watches handshakes fail.

    ``refused`` counts "stranger" (no CURVE, or nothing that speaks ZeroMQ at all) and "wrong key". Connections that
    have not proven themselves are bounded, so that strangers cannot take all of the process's descriptors.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]", client_key: bytes
    ) -> None:
        """Made before ``socket`` is bound, in the context that is its own."""
        self.refused: Counter[str] = Counter(
            {"stranger": 0, "wrong key": 0}
        )  # read by another thread: of one size
        self._key = z85.decode(client_key)
        self._questions = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind(_ZAP)
        self._events = socket.get_monitor_socket(_WATCHED)
        self._unproven = _Unproven()
        self._wrong_keys = 0
        """Handshakes that have failed for their key, whose connections have yet to be closed."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-authenticator", daemon=True)
        self._thread.start()

    def guard(self, port: int) -> None:
        """The socket listens at this port: from now on connections to it are bounded."""
        self._unproven.port = port

    def close(self) -> None:
        """End the thread; the socket is to be closed after this."""
        self._closing.set()
        self._thread.join()
        self._unproven.close()

    def _watch(self) -> None:
        poller = zmq.Poller()
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        while not self._closing.is_set():
            for ready, _ in poller.poll(100):
                with suppress(zmq.Again):
                    self._answer() if ready is self._questions else self._notice_all()
            self._unproven.settle()
        self._questions.close()
        self._events.close(linger=0)

    def _answer(self) -> None:
        """The reply says 200 to the key that is derived from the secret and 400 to all others."""
        question = self._questions.recv_multipart(zmq.NOBLOCK)
        known = len(question) == 7 and question[5] == b"CURVE" and question[6] == self._key
        number = question[1] if len(question) > 1 else b""
        self._questions.send_multipart([b"1.0", number, b"200" if known else b"400", b"", b"", b""])

    def _notice_all(self) -> None:
        for _ in range(MOST_UNPROVEN):  # then others may want an answer to their question
            self._notice()
            self._unproven.bound(MOST_UNPROVEN)

    def _notice(self) -> None:
        message = recv_monitor_message(self._events, zmq.NOBLOCK)
        event, value = message["event"], message["value"]
        if event == zmq.EVENT_ACCEPTED:
            self._unproven.add(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._unproven.one_has_proven()
        elif event == zmq.EVENT_DISCONNECTED:
            if self._unproven.remove(value):
                self._count_refused()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            self._wrong_keys += 1

    def _count_refused(self) -> None:
        """Every connection counts once, when it is closed: only then is it known which one it is."""
        self.refused["wrong key" if self._wrong_keys else "stranger"] += 1
        self._wrong_keys = max(0, self._wrong_keys - 1)


class _Unproven:
    """Connections that were accepted and have not proven themselves, by their descriptors, oldest first.

    The descriptors are ZeroMQ's, which may close them at any time. Each is looked at through a duplicate, which cannot
    come to mean something else meanwhile; it takes a descriptor that is reserved for it, as there may be no other.
    """

    port: int | None = None

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self._shut: set[int] = set()
        """Those that were shut down; ZeroMQ has yet to close them."""
        self._succeeded = 0
        """Handshakes that have succeeded, less the connections found to be theirs, which may be found first."""
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._spare = os.dup(self._nothing)

    def add(self, descriptor: int) -> None:
        """A connection was accepted."""
        self._shut.discard(descriptor)
        self._open[descriptor] = None

    def remove(self, descriptor: int) -> bool:
        """A connection is closed; whether it had not proven itself."""
        if descriptor not in self._open and descriptor not in self._shut:
            return False
        self._open.pop(descriptor, None)
        self._shut.discard(descriptor)
        if self._succeeded > 0:  # one that came and went before it was found
            self._succeeded -= 1
            return False
        return True

    def one_has_proven(self) -> None:
        """A handshake has succeeded, and ZeroMQ does not say whose."""
        self._succeeded += 1
        self.settle()

    def settle(self) -> None:
        """Find those whose handshakes have succeeded, newest first: the kernel tells whom ZeroMQ has sent a READY.

        The event may come a moment before the READY is sent; then this is for the next call to find out.
        """
        if self._succeeded > 0:
            for descriptor in [*reversed(self._open)]:
                if (self._sent(descriptor) or 0) >= _READY:
                    del self._open[descriptor]
                    self._succeeded -= 1

    def bound(self, most: int) -> None:
        """Shut down the oldest beyond so many, whatever they sent; whoever has proven itself is left alone."""
        while len(self._open) > most:
            oldest = next(iter(self._open))
            del self._open[oldest]
            if (self._sent(oldest, shut_below=_READY) or 0) < _READY:
                self._shut.add(oldest)
            else:
                self._succeeded -= 1

    def close(self) -> None:
        """Give the reserved descriptors back."""
        os.close(self._spare)
        os.close(self._nothing)

    def _sent(self, descriptor: int, shut_below: int = 0) -> int | None:
        """Bytes sent over a connection to the port; it is shut down if they are fewer. None: there is none."""
        try:
            os.dup2(descriptor, self._spare, inheritable=False)
        except OSError:
            return None
        connection: sockets.socket | None = None
        try:
            connection = sockets.socket(fileno=self._spare)
            if connection.getsockname()[1] != self.port:
                return None
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _INFO)
            sent, again = struct.unpack_from("<QQ", info, _SENT_AT)
            if sent - again < shut_below:
                connection.shutdown(sockets.SHUT_RDWR)
            return int(sent - again)
        except (OSError, IndexError, struct.error):
            return None
        finally:
            if connection is not None:
                connection.detach()
            os.dup2(self._nothing, self._spare, inheritable=False)

"""A connection to one server, and whether it still stands."""

import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from paceline.errors import Mistake
from paceline.runtimes.live.served.keys import Keys
from paceline.runtimes.live.served.tuning import AT_WORKER, tune

WAITING = 8
"""Messages that may wait for one server."""
GRACE = 1.0
"""Seconds for which others may still be heard after a server's connection was lost."""
_CONNECTING = 15.0
"""Seconds until a first connection must stand."""
_ATTEMPTS = 5
"""Handshakes that may fail before the secret is wrong beyond doubt."""
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)
_WATCHED = sum(_FAILED) | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class ServerLost(ConnectionError):
    """A server does not answer any more."""


def dealer(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, server_key: bytes, own: Keys
) -> "zmq.Socket[bytes]":
    """A socket that connects to one server."""
    socket = context.socket(zmq.DEALER)
    tune(socket, WAITING, AT_WORKER)
    socket.ipv6 = "[" in endpoint
    socket.curve_serverkey = server_key
    socket.curve_publickey, socket.curve_secretkey = own
    socket.connect(endpoint)
    return socket


class Connection:
    """A DEALER socket, and what its monitor has told.

    A connection that stood and was lost stays lost: messages may have gone with it.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self.events = socket.get_monitor_socket(_WATCHED)
        self.stands = False
        """Whether the handshake has succeeded, ever."""
        self.down_at: float | None = None
        """When the connection was lost, by the monotonic clock."""
        self._failed = 0

    @property
    def turned_away(self) -> bool:
        """Whether the other end has another secret, beyond doubt."""
        return self._failed >= _ATTEMPTS

    def watch(self) -> None:
        """Take in what the monitor has told."""
        while self.events.poll(0):
            self._notice(recv_monitor_message(self.events)["event"])

    def close(self, linger: float) -> None:
        """Close, once what was sent has gone out or so many seconds are over."""
        self.socket.disable_monitor()
        self.events.close(linger=0)
        self.socket.close(linger=0 if self.down_at is not None else round(linger * 1000))

    def _notice(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.stands = True
        elif event == zmq.EVENT_DISCONNECTED:
            if self.stands and self.down_at is None:
                self.down_at = time.monotonic()
        elif not self.stands:
            self._failed += 1


class Link(Connection):
    """A worker's connection to one server."""

    def __init__(self, number: int, endpoint: str, socket: "zmq.Socket[bytes]") -> None:
        super().__init__(socket)
        self.number, self.endpoint = number, endpoint
        self.shares = False
        """Whether the server maps this worker's memory."""
        self._made_at = time.monotonic()

    def watch(self) -> None:
        """Take in what the monitor has told; raise ServerLost, or a Mistake where the secret is wrong."""
        super().watch()
        now = time.monotonic()
        if self.down_at is not None and now - self.down_at > GRACE:
            raise self.lost("connection closed by peer")
        if self.turned_away:
            raise Mistake(
                f"server {self.number} at {self.endpoint} does not take this worker's secret; give the same "
                "--secret-file on every host"
            )
        if not self.stands and now - self._made_at > _CONNECTING:
            raise self.lost(f"no connection within {_CONNECTING:g} s (connection refused)")

    @property
    def down(self) -> bool:
        """Whether the connection is lost."""
        return self.down_at is not None

    def lost(self, how: str) -> ServerLost:
        """The exception that says so."""
        return ServerLost(f"server {self.number} at {self.endpoint} is lost: {how}")

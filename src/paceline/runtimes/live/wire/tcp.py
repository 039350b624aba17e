"""TCP connections: what both ends are set to, and how a client gets one."""

import socket
import time
from collections.abc import Callable

from paceline.runtimes.live.wire.channel import NOTHING, Announce, Channel, Limits, drop_all
from paceline.runtimes.live.wire.noise import NotGenuine

CONNECTING = 15.0
"""Seconds until a first connection must stand."""
_AGAIN = 0.2
_CUT = 4
"""Seconds without TCP's acknowledgement after which a connection counts as cut: a slow link still has them."""
_IDLE = 60
"""Seconds after which the system looks whether the other end of a patient connection is still there."""

Tune = Callable[[socket.socket], None]


def tune_server(connection: socket.socket) -> None:
    """Send at once, and notice soon that the other end is gone while nothing is sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _CUT)


def tune_worker(connection: socket.socket) -> None:
    """Notice it also while something is sent. For a worker: a server always reads, but a worker may be busy."""
    tune_server(connection)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _CUT)


def tune_patient(connection: socket.socket) -> None:
    """Send at once, and survive a network that is cut for minutes: others decide when a host is lost."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)


def connect(
    endpoint: str,
    key: bytes,
    announce: Announce = drop_all,
    limits: Limits = NOTHING,
    patience: float = CONNECTING,
    tune: Tune = tune_worker,
) -> Channel:
    """Connect to a listener. NotGenuine: it has another key; OSError: no answer within ``patience`` seconds."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    end = time.monotonic() + patience
    while True:
        try:
            left = max(_AGAIN, end - time.monotonic())
            connection = socket.create_connection((host.strip("[]"), int(port)), left)
            channel = Channel(connection, announce, limits)
            try:
                tune(connection)
                channel.call(key)
                return channel
            except BaseException:
                channel.close()
                raise
        except NotGenuine:
            raise
        except OSError:  # a listener under attack may have shut this out, one of many that were unproven
            if time.monotonic() + _AGAIN > end:
                raise
            time.sleep(_AGAIN)

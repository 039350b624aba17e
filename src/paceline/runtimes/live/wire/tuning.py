"""What both ends of a connection are set to."""

import socket

_CUT = 4
"""Seconds without TCP's acknowledgement after which a connection counts as cut: a slow link still has them."""


def tune_tcp(connection: socket.socket) -> None:
    """Send at once, and notice when the other end goes while nothing is sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _CUT)


def tune_timeout(connection: socket.socket) -> None:
    """Notice it also while something is sent. For a worker: a server always reads, but a worker may be busy."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _CUT)

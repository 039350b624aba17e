"""Ports for benchmarks that start processes of their own."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Ports on the loopback that nobody listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]

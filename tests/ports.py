"""Ports for tests that must know one before anybody listens on it."""

import os
import random
import socket
from contextlib import suppress

FIRST, SPAN = 20_000, 4_000
"""Below the ports that the system gives to connections, so that none of those takes one in between."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; test processes that run side by side choose from ranges of their own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 3
    candidates = range(FIRST + worker * SPAN, FIRST + (worker + 1) * SPAN)
    found: list[int] = []
    for port in random.SystemRandom().sample(candidates, SPAN):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")

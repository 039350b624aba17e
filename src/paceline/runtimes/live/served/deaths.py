"""A launcher tells the servers which of its workers have died, so that nobody waits until their silence tells."""

from collections.abc import Sequence
from contextlib import suppress

import zmq

from paceline.runtimes.live.served import wire
from paceline.runtimes.live.served.control import Died
from paceline.runtimes.live.served.keys import Secret, server_keys, worker_keys
from paceline.runtimes.live.served.links import dealer

_LINGER = 1000
"""Milliseconds that a notice has to go out: the last one is sent just before its launcher ends."""


class DeathNotices:
    """Connections to all servers, opened at the first death."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sockets: list[zmq.Socket[bytes]] = []

    def tell(self, rank: int, step: int, endpoints: Sequence[str]) -> None:
        """Tell every server that a worker has died, and after which step; waits for nobody."""
        if self._context is None:
            if not endpoints:
                return  # nobody here has come so far as to know the servers, so none counts on it yet
            self._context = zmq.Context()
            keys = server_keys(self._secret).public, worker_keys(self._secret)
            self._sockets = [dealer(self._context, endpoint, *keys) for endpoint in endpoints]
        for socket in self._sockets:
            with suppress(zmq.Again):  # a server that takes nothing is gone itself
                socket.send_multipart(wire.pack(Died(rank, step)), zmq.NOBLOCK)

    def close(self) -> None:
        """Close once every notice has gone out, or soon after: a server that takes none has ended."""
        if self._context is not None:
            self._context.destroy(linger=_LINGER)

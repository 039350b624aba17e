"""A worker's pulse: while its process lives, every server hears of it, whatever the worker is busy with."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import zmq

from paceline.runtimes.live.served import wire
from paceline.runtimes.live.served.control import Beat
from paceline.runtimes.live.served.keys import Keys
from paceline.runtimes.live.served.links import dealer
from paceline.runtimes.live.timeouts import BEAT


class Pulse:
    """A thread with connections of its own."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        server_key: bytes,
        own: Keys,
        rank: int,
    ) -> None:
        self._sockets = [dealer(context, endpoint, server_key, own) for endpoint in endpoints]
        self._frames = wire.pack(Beat(rank))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="paceline-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more beats."""
        self._closing.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            for socket in self._sockets:
                with suppress(
                    zmq.Again
                ):  # a server that is gone or late needs no more beats than wait already
                    socket.send_multipart(self._frames, zmq.NOBLOCK)
            if self._closing.wait(BEAT):
                break
        for socket in self._sockets:
            socket.close(linger=0)

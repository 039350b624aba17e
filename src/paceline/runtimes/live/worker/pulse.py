"""A worker's pulse: while its process lives, every server hears of it, whatever the worker is busy with."""

import threading
from collections.abc import Sequence
from contextlib import suppress

from paceline.runtimes.live.timeouts import BEAT
from paceline.runtimes.live.wire import encoding as wire
from paceline.runtimes.live.wire.channel import Channel
from paceline.runtimes.live.wire.control import Beat
from paceline.runtimes.live.worker.links import call


class Pulse:
    """A thread with connections of its own."""

    def __init__(self, endpoints: Sequence[str], secret: bytes, rank: int) -> None:
        self._endpoints, self._secret = endpoints, secret
        self._beat = wire.pack(Beat(rank))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more beats."""
        self._closing.set()
        self._thread.join(BEAT)  # it may still be connecting

    def _run(self) -> None:
        channels: list[Channel] = []
        for endpoint in self._endpoints:
            with suppress(OSError):  # the worker finds out for itself
                channels.append(call(endpoint, self._secret))
        while True:
            for channel in channels:
                with suppress(OSError):  # a server that is gone or late needs no more beats than wait already
                    channel.flush()
                    channel.send(*self._beat, most=1)
            if self._closing.wait(BEAT):
                break
        for channel in channels:
            channel.close()

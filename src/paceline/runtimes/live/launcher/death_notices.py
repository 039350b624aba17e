"""A launcher tells the servers which of its workers have died, so that nobody waits until their silence tells."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.wire.channel import connect
from paceline.runtimes.live.wire.encoding import pack
from paceline.runtimes.live.wire.messages import Died

_TOLD = 5.0
"""Seconds that a server has to take a notice; one that does not is gone itself."""
_LINGER = 1.0
"""Seconds that a notice has to go out: the last one is sent just before its launcher ends."""


class DeathNotices:
    """Every notice has a thread and connections of its own: deaths are few."""

    def __init__(self, secret: Secret) -> None:
        self._secret = wire_key(secret)
        self._threads: list[threading.Thread] = []

    def tell(self, rank: int, step: int, endpoints: Sequence[str]) -> None:
        """Tell every server that a worker has died, and after which step; waits for nobody."""
        for endpoint in endpoints:
            thread = threading.Thread(target=self._tell, args=(Died(rank, step), endpoint), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Return once every notice has gone out, or soon after: a server that takes none has ended."""
        end = time.monotonic() + _LINGER
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _tell(self, death: Died, endpoint: str) -> None:
        with suppress(OSError):
            channel = connect(endpoint, self._secret, patience=_TOLD)
            channel.send(pack(death), most=1)
            channel.close()

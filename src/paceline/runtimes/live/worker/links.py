"""A worker's connection to one server, and whether it still stands."""

import time

from paceline.errors import UsageError
from paceline.runtimes.live.wire.channel import Announce, Limits, OtherVersion
from paceline.runtimes.live.wire.encoding import Packet
from paceline.runtimes.live.wire.noise import NotGenuine
from paceline.runtimes.live.wire.tcp import CONNECTING, connect

GRACE = 1.0
"""Seconds for which others may still be heard after a server's connection was lost."""
_HANDED_OVER = 10.0
"""Seconds within which a server must take something of a message."""


class ServerLost(ConnectionError):
    """A server does not answer any more."""


class Link:
    """A connection that stood and was lost stays lost: messages may have gone with it."""

    def __init__(self, number: int, endpoint: str, secret: bytes, announce: Announce, limits: Limits) -> None:
        """Connect; ServerLost if nobody answers, and a UsageError where the secret is wrong."""
        self.number, self.endpoint = number, endpoint
        self.shares = False
        """Whether the server maps this worker's memory."""
        self.down_at: float | None = None
        """When the connection was lost, by the monotonic clock."""
        try:
            self.channel = connect(endpoint, secret, announce, limits)
        except OtherVersion:
            raise UsageError(
                f"server {number} at {endpoint} runs another version of paceline; install the same on every host"
            ) from None
        except NotGenuine:
            raise UsageError(
                f"server {number} at {endpoint} does not take this worker's secret; give the same "
                "--secret-file on every host"
            ) from None
        except OSError as error:
            raise self.lost(f"no connection within {CONNECTING:g} s ({error})") from None

    def send(self, packet: Packet) -> None:
        """Hand a message over; ServerLost if that cannot be."""
        if self.down_at is not None:
            raise self.lost("connection closed by peer")
        try:
            self.channel.send(packet.header, packet.body, 1, _HANDED_OVER)
        except OSError as error:
            raise self.lost(str(error)) from None

    def read(self) -> bool:
        """Take what has come; False if this is the end of the connection."""
        try:
            self.channel.read()
        except OSError:
            self.down_at = time.monotonic()
        return self.down_at is None

    def check(self) -> None:
        """ServerLost if the connection is, for so long that others have been heard."""
        if self.down_at is not None and time.monotonic() - self.down_at > GRACE:
            raise self.lost("connection closed by peer")

    def lost(self, how: str) -> ServerLost:
        """The exception that says so."""
        return ServerLost(f"server {self.number} at {self.endpoint} is lost: {how}")

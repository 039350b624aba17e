"""A worker's connection to one server, and whether it still stands."""

import socket
import time

from paceline.errors import UsageError
from paceline.runtimes.live.wire.channel import NOTHING, Announce, Channel, Limits, OtherVersion, drop_all
from paceline.runtimes.live.wire.encoding import Packet
from paceline.runtimes.live.wire.noise import NotGenuine
from paceline.runtimes.live.wire.tuning import tune_tcp, tune_timeout

GRACE = 1.0
"""Seconds for which others may still be heard after a server's connection was lost."""
CONNECTING = 15.0
"""Seconds until a first connection must stand."""
_AGAIN = 0.2
_HANDED_OVER = 10.0
"""Seconds within which a server must take something of a message."""


class ServerLost(ConnectionError):
    """A server does not answer any more."""


def call(
    endpoint: str,
    secret: bytes,
    announce: Announce = drop_all,
    limits: Limits = NOTHING,
    patience: float = CONNECTING,
) -> Channel:
    """Connect to a server. NotGenuine: it has another secret; OSError: no answer within ``patience`` seconds."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    end = time.monotonic() + patience
    while True:
        try:
            left = max(_AGAIN, end - time.monotonic())
            connection = socket.create_connection((host.strip("[]"), int(port)), left)
            channel = Channel(connection, announce, limits)
            try:
                tune_tcp(connection)
                tune_timeout(connection)
                channel.call(secret)
                return channel
            except BaseException:
                channel.close()
                raise
        except NotGenuine:
            raise
        except OSError:  # a server under attack may have shut this out, one of many that were unproven
            if time.monotonic() + _AGAIN > end:
                raise
            time.sleep(_AGAIN)


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
            self.channel = call(endpoint, secret, announce, limits)
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

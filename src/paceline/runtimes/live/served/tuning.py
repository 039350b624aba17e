"""What both ends of a connection are set to."""

import zmq

from paceline.runtimes.live.served.kinds import LONGEST_ANSWER
from paceline.runtimes.live.served.layout import PIECE

AT_SERVER, AT_WORKER = 2 * PIECE, 2 * LONGEST_ANSWER
"""Bytes of a frame beyond which ZeroMQ cuts the connection off; what is below and still too much is refused."""
_BEAT, _FROZEN = 1_000, 300_000
"""Milliseconds between ZeroMQ's own heartbeats, and after which a process that is there but frozen counts as gone. That
is long: launchers and servers notice it sooner, and by times that a user can set."""
_CUT = 4_000
"""Milliseconds without TCP's acknowledgement after which a connection counts as cut: a slow link still has them."""


def tune(socket: "zmq.Socket[bytes]", waiting: int, largest: int) -> None:
    """Bounded queues of so many messages, bounded frames, and connections that notice when their other end goes."""
    socket.sndhwm = socket.rcvhwm = waiting
    socket.maxmsgsize = largest
    socket.heartbeat_ivl, socket.heartbeat_timeout = _BEAT, _FROZEN
    socket.tcp_maxrt = _CUT

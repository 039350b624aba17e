"""A message on its way between workers and servers, in both runtimes."""

from dataclasses import dataclass
from typing import Any

from paceline.strategies.effects import Peer


@dataclass(slots=True)
class Envelope:
    message: Any
    sender: Peer
    """Of rank -1 where a connection belongs to no worker."""
    size: int = 0
    """Bytes that travel in virtual time."""
    begun: float = 0.0
    """When its first byte left, in virtual time."""
    arrived: float = 0.0
    how: str = ""
    """Of a worker's last message: "finished", "left" or "died"."""
    stop: bool = False
    """From a worker: it was asked to stop. From a server: all workers stop."""
    depth: int = 1
    """Messages that were waiting when this one was taken, itself included."""
    connection: Any = None
    """The live connection that it came over, for a reply to a sender without a rank."""

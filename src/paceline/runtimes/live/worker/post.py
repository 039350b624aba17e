"""A worker's way to the servers, as its engine uses it."""

from typing import Any, Protocol

from paceline.errors import RunFailed


class Post(Protocol):
    """The way to the servers, where the strategy has some."""

    def send(self, server: int, message: Any) -> None:
        """Hand a message over; its tensors must not change before an answer."""

    def receive(self) -> tuple[int, Any]:
        """Wait for a server's next message: (server, message)."""

    def leaving(self) -> bool:
        """Whether this worker alone is to leave before its next step."""


class NoPost:
    """There are no servers."""

    def send(self, server: int, message: Any) -> None:  # noqa: ARG002
        """A strategy of our own never asks."""
        raise RunFailed(f"the strategy sends to server {server}, and it has no servers")

    def receive(self) -> tuple[int, Any]:
        """A strategy of our own never asks."""
        raise RunFailed("the strategy waits for a message, and it has no servers")

    def leaving(self) -> bool:
        """The others need every worker."""
        return False

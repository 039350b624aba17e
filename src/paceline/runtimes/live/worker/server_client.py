"""A worker's line to the servers: the strategy's messages, and what the workers do together through server 0."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Self

from torch import Tensor

from paceline.errors import UsageError
from paceline.runtimes.live.wire.control import (
    GIVEN_UP,
    AllWords,
    Ask,
    Contribution,
    Goodbye,
    Keep,
    Kept,
    Refusal,
    Result,
    Told,
    Words,
)
from paceline.runtimes.live.wire.encoding import STOP
from paceline.runtimes.live.worker.worker_sockets import WorkerSockets
from paceline.strategies.messages import MESSAGES


class Expelled(ConnectionError):
    """The servers have given this worker up; the run goes on without it."""


class ServerClient:
    """One worker's connections to all servers; messages of different kinds do not get into each other's way."""

    def __init__(
        self, sockets: WorkerSockets, servers: int, patience: float, asked: Callable[[], bool]
    ) -> None:
        """``asked`` tells whether somebody asked this worker to stop; ``patience`` is for one answer, in seconds."""
        self.servers = servers
        self.stopping = False
        """Whether the servers have said that all workers stop."""
        self._sockets, self._patience, self._asked = sockets, patience, asked
        self._later: deque[tuple[int, Any]] = deque()

    def send(self, server: int, message: Any) -> None:
        """Hand a message over; its tensors must not change before an answer."""
        self._sockets.send(server, message, STOP if self._asked() else 0)

    def wait_for(self, *kinds: type) -> tuple[int, Any]:
        """The next message of one of these kinds, and which server sent it."""
        for place, (server, message) in enumerate(self._later):
            if isinstance(message, kinds):
                del self._later[place]
                return server, message
        while True:
            server, flags, message = self._sockets.receive(self._patience)
            self.stopping = self.stopping or bool(flags & STOP)
            if isinstance(message, Refusal):
                if message.reason.startswith(GIVEN_UP):
                    raise Expelled(message.reason.removeprefix(GIVEN_UP))
                raise UsageError(f"server {server} does not take this worker: {message.reason}")
            if isinstance(message, kinds):
                return server, message
            self._later.append((server, message))

    def together(self, op: str, tensor: Tensor, root: int = 0) -> tuple[tuple[int, ...], Tensor]:
        """Give a tensor to a collective of all workers; who took part, and what came of it."""
        self.send(0, Contribution(op, root, tensor.contiguous()))
        _, result = self.wait_for(Result)
        return _ranks(result.members), result.tensor

    def exchange(self, document: Any) -> tuple[tuple[int, ...], list[Any]]:
        """Give a document to all workers; who took part, and their documents by rank."""
        self.send(0, Words(json.dumps(document)))
        _, words = self.wait_for(AllWords)
        documents = json.loads(words.document)
        return tuple(int(rank) for rank in documents), [json.loads(text) for text in documents.values()]

    def keep(self, step: int) -> None:
        """Have every server save its part; all workers ask, so that none goes on before."""
        for server in range(self.servers):
            self.send(server, Keep(step))
        for _ in range(self.servers):
            self.wait_for(Kept)

    def ask(self) -> list[Any]:
        """What every server has done so far, by rank."""
        answers: dict[int, Any] = {}
        for server in range(self.servers):
            self.send(server, Ask())
        for _ in range(self.servers):
            server, told = self.wait_for(Told)
            answers[server] = json.loads(told.document)
        return [answers[server] for server in sorted(answers)]

    def part(self, clock: int, how: str) -> None:
        """Say goodbye to every server, and close."""
        for server in range(self.servers):
            self.send(server, Goodbye(clock, how))
        self.close()

    def close(self) -> None:
        """Close the connections; whatever was sent before still goes out."""
        self._sockets.close()


class ServerPost:
    """The line as the engine uses it."""

    def __init__(self, line: ServerClient, leaving: Callable[[], bool]) -> None:
        self._line, self.leaving = line, leaving

    def send(self, server: int, message: Any) -> None:
        """Hand a message over; what lies on a GPU is copied, for servers take it from the CPU's memory."""
        copied = {
            field.name: value.cpu()
            for field in fields(message)
            if isinstance(value := getattr(message, field.name), Tensor) and value.device.type != "cpu"
        }
        self._line.send(server, replace(message, **copied) if copied else message)

    def receive(self) -> tuple[int, Any]:
        """Wait for a server's next message to the strategy."""
        return self._line.wait_for(*MESSAGES)


class ByServers:
    """Workers stop when the servers say so; one that is asked to stop tells them with whatever it sends next."""

    def __init__(self, line: ServerClient, note: Callable[[str], None]) -> None:
        self._line, self._note, self._told = line, note, False

    def vote(self) -> float:
        """Nothing is reduced by whom a vote could travel with."""
        return 0.0

    def count(self, votes: float) -> None:
        """Nothing to count."""

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        """Whether the servers have said so."""
        if self._line.stopping and not self._told:
            self._told = True
            self._note("stopping when all workers have come, as asked; Ctrl-C again ends at once")
        return self._line.stopping

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in text.split(",") if rank)

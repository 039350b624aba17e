"""A runtime small enough to be trusted: messages wait on their way until a test delivers them."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from paceline.records.servers import AppliedGradient
from paceline.strategies.base import Server, Worker, server_slices
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Clock,
    Gradient,
    Peer,
    Program,
    Receive,
    Send,
)
from paceline.strategies.messages import Leave, Model

SAMPLES = 2
"""In every mini-batch."""


class Hand:
    """Workers, servers and the messages between them; a server's optimizer is plain SGD with rate 1."""

    def __init__(
        self,
        strategy: Any,
        size: int,
        gradient: Callable[[Worker], Tensor],
        servers: int = 1,
        awaited: int = 0,
    ) -> None:
        self.strategy, self.gradient, self.size = strategy, gradient, size
        self.on_their_way: dict[tuple[Peer, Peer], deque[Any]] = {}
        self.applied: list[tuple[AppliedGradient, ...]] = []
        """Server 0's updates."""
        self.answers: list[tuple[int, int, Model]] = []
        """(server, worker, answer), the parameters copied."""
        self.until: dict[int, float | None] = {}
        self.workers: dict[int, Worker] = {}
        self.computing: set[int] = set()
        self.members: set[int] = set()
        """Of the collectives of a meeting: whom server 0 has sent to."""
        self._given: dict[int, int] = {}
        self._inbox: dict[int, deque[Any]] = {}
        self._programs: dict[int, Program] = {}
        self._receiving: set[int] = set()
        vectors = server_slices(torch.zeros(size), servers)
        self.servers = [
            Server(rank, servers, part.clone(), part.clone(), initial_workers=tuple(range(awaited)))
            for rank, part in enumerate(vectors)
        ]
        self._served = [strategy.server(server) for server in self.servers]
        for rank in range(servers):
            self._serve(rank, None)

    def join(self, rank: int, life: Callable[["Hand", Worker], Program] | None = None) -> None:
        """A worker starts and runs until it has to wait; ``life`` is its program if not the strategy's own.

        What was on its way to a worker of the same rank that has died is lost, as its connection is.
        """
        for (_, receiver), messages in self.on_their_way.items():
            if receiver == Peer("worker", rank):
                messages.clear()
        zeros = torch.zeros(self.size)
        me = Worker(rank, 0, zeros.clone(), zeros.clone(), torch.empty(0), servers=len(self.servers))
        self.workers[rank], self._inbox[rank] = me, deque()
        self._programs[rank] = life(self, me) if life else self.strategy.worker(me)
        self._run(rank, None)

    def finish(self, rank: int) -> None:
        """A worker has computed its gradient and goes on until it has to wait."""
        self.computing.remove(rank)
        me = self.workers[rank]
        me.grad.copy_(self.gradient(me))
        me.samples = SAMPLES
        self._run(rank, None)

    def meet(self, rank: int) -> None:
        """A worker goes to a meeting instead of computing."""
        self.computing.remove(rank)
        self._programs[rank] = self.strategy.central(self.workers[rank])
        self._run(rank, None)

    def leave(self, rank: int) -> None:
        """A worker dies, wherever it is; each server hears of it after what the worker had said."""
        me = self.workers.pop(rank)
        self.computing.discard(rank)
        self._receiving.discard(rank)
        for server in range(len(self.servers)):
            self._post(Peer("worker", rank), Peer("server", server), Leave(me.clock))

    def waiting(self) -> list[tuple[Peer, Peer]]:
        """The ways on which a message waits, in a fixed order."""
        return sorted(way for way, messages in self.on_their_way.items() if messages)

    def deliver(self, way: tuple[Peer, Peer]) -> None:
        """The next message of a way arrives."""
        sender, receiver = way
        message = self.on_their_way[way].popleft()
        if receiver.role == "worker":
            if receiver.rank in self.workers:
                self._inbox[receiver.rank].append((sender, message))
                self._wake(receiver.rank)
            return
        self._serve(receiver.rank, (sender, message))
        if isinstance(message, Leave) and receiver.rank == 0:
            self.members.discard(sender.rank)
            self._given.pop(sender.rank, None)
            self._collect()

    def settle(self) -> None:
        """Everything arrives."""
        while ways := self.waiting():
            self.deliver(ways[0])

    def tick(self, rank: int) -> None:
        """The time for which a server waits has come."""
        until = self.until[rank]
        assert until is not None
        self.servers[rank].now = until
        self._serve(rank, None)

    def _post(self, sender: Peer, receiver: Peer, message: Any) -> None:
        self.on_their_way.setdefault((sender, receiver), deque()).append(message)

    def _serve(self, rank: int, delivery: Any) -> None:
        me, program = self.servers[rank], self._served[rank]
        effect = next(program) if rank not in self.until else program.send(delivery)
        while not isinstance(effect, Receive):
            match effect:
                case Apply(credits, rate):
                    me.params -= rate * me.grad
                    me.version += 1
                    me.seen += sum(credit.samples for credit in credits)
                    if rank == 0:
                        self.applied.append(credits)
                case Send(to, Model() as model):
                    copy = Model(
                        model.params.clone(), model.version, model.seen, model.seen_at_sync, model.held
                    )
                    self.answers.append((rank, to.rank, copy))
                    self._post(Peer("server", rank), to, copy)
                    if rank == 0:
                        self.members.add(to.rank)
                case _:
                    raise AssertionError(effect)
            effect = program.send(None)
        self.until[rank] = effect.until

    def _wake(self, rank: int) -> None:
        if rank in self._receiving and self._inbox[rank]:
            self._receiving.remove(rank)
            self._run(rank, self._inbox[rank].popleft())

    def _run(self, rank: int, answer: Any) -> None:
        me = self.workers[rank]
        with suppress(StopIteration):
            while True:
                effect = self._programs[rank].send(answer)
                answer = None
                match effect:
                    case Send(to, message):
                        self._post(Peer("worker", rank), to, message)
                    case Clock():
                        me.clock += 1
                    case Gradient():
                        self.computing.add(rank)
                        return
                    case AllReduce():
                        self._given[rank] = self._given.get(rank, 0) + 1
                        self._collect()
                        return
                    case Receive():
                        self._receiving.add(rank)
                        self._wake(rank)
                        return

    def _collect(self) -> None:
        """A collective is whole when each member has given to it."""
        while self.members and all(self._given.get(member) for member in self.members):
            givers = [rank for rank, given in self._given.items() if given]
            for rank in givers:
                self._given[rank] -= 1
            for rank in givers:
                if rank in self.workers:
                    self._run(rank, None)


def shuffled(hand: Hand, choices: list[int]) -> Iterator[None]:
    """Do whatever can happen next, as the choices say; a pause after each."""
    for choice in choices:
        ways = hand.waiting()
        able = [*ways, *sorted(hand.computing)]
        assert able, "nobody computes and nothing is on its way: everybody waits for somebody"
        chosen = able[choice % len(able)]
        hand.finish(chosen) if isinstance(chosen, int) else hand.deliver(chosen)
        yield

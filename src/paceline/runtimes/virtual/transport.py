"""Messages in virtual time: how they travel, what they cost, and what the servers' logs say of them."""

from abc import ABC, abstractmethod
from collections import deque
from functools import cache, partial

from paceline.errors import RunFailed
from paceline.records.servers import Entry, Received, Ticked
from paceline.runtimes.virtual.collectives import VirtualCollectives
from paceline.runtimes.virtual.ledger import COMMUNICATE, WAIT
from paceline.runtimes.virtual.node import Node, SimulatedMessage, explain_deadlock
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.effects import Peer, Receive, Send
from paceline.strategies.messages import Leave, message_bytes

QUIET = 8
"""Ticks of each server in which nothing else happens or is scheduled, before a run counts as stuck."""


class VirtualTransport(ABC):
    """Carries messages, and decides what happens next when no program can be resumed."""

    def __init__(self, simulation: Simulation, collectives: VirtualCollectives) -> None:
        self._simulation, self._collectives = simulation, collectives
        self._ready = simulation.ready

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether a server has still something to receive although no worker is left."""

    @property
    def over(self) -> bool:
        """Whether nothing more is to happen, although workers are left."""
        return False

    @abstractmethod
    def send(self, node: Node, effect: Send) -> bool:
        """Take a message; whether the sender has to wait."""

    @abstractmethod
    def receive(self, node: Node, effect: Receive) -> bool:
        """Hand out a message; whether the receiver has to wait."""

    @abstractmethod
    def leave(self, node: Node, how: str, now: float) -> None:
        """Tell the servers that a worker is gone."""

    @abstractmethod
    def proceed(self) -> bool:
        """Let the next event happen; False where there is none."""

    def note(self, node: Node, entry: Entry) -> None:
        """Count what a server received or did, and keep it where every step is kept."""
        node.totals.add(entry)
        if self._simulation.recorder.detailed:
            self._simulation.recorder.served(node.peer.rank, entry)

    def _receiver(self, sender: Node, effect: Send) -> Node:
        target = self._simulation.nodes.get(effect.to)
        if target is None:
            raise RunFailed(f"{sender} sends to {effect.to.role} {effect.to.rank}, and there is no such node")
        return target


class SimulatedTransport(VirtualTransport):
    """Messages over the links, in the order in which they arrive; those between two nodes keep their order."""

    def __init__(self, simulation: Simulation, collectives: VirtualCollectives) -> None:
        super().__init__(simulation, collectives)
        self._timeline = simulation.timeline
        topology = simulation.topology
        self._to_server, self._from_server = cache(topology.to_server), cache(topology.from_server)
        self._queues: dict[tuple[Peer, Peer], deque[SimulatedMessage]] = {}
        self._leaving = self._ticks = self._quiet = 0

    @property
    def pending(self) -> bool:
        return self._leaving > 0

    def proceed(self) -> bool:
        return self._timeline.step()

    def send(self, node: Node, effect: Send) -> bool:
        """The message leaves when the timeline has come to where its sender is."""
        target, shape = self._receiver(node, effect), self._simulation.shape
        size = shape.message_bytes(effect.message)
        node.ledger.moved(size, 0)
        envelope = SimulatedMessage(node.peer, self._simulation.compute.copy(effect.message), size)
        leaves = node.me.now + shape.coding(effect.message)
        self._timeline.at(leaves, partial(self._depart, node, target, envelope))
        return True

    def _depart(self, node: Node, target: Node, envelope: SimulatedMessage, now: float) -> None:
        if node.gone:
            return
        if node.session is None and node.peer.rank == 0:
            self._collectives.admit(target)
        self._enqueue(node, target, envelope, now)
        self._ready.append(node)

    def leave(self, node: Node, how: str, now: float) -> None:
        """Leave travels as the worker's other messages do, behind them."""
        leave = Leave(node.me.clock)
        for server in self._simulation.servers:
            self._leaving += 1
            envelope = SimulatedMessage(node.peer, leave, message_bytes(leave), how)
            self._timeline.at(now, partial(self._enqueue, node, server, envelope))

    def _enqueue(self, sender: Node, target: Node, envelope: SimulatedMessage, now: float) -> None:
        queue = self._queues.setdefault((sender.peer, target.peer), deque())
        queue.append(envelope)
        if len(queue) == 1:
            self._start(sender, target, queue, now)

    def _start(self, sender: Node, target: Node, queue: deque[SimulatedMessage], now: float) -> None:
        route = (self._from_server if sender.session is None else self._to_server)(sender.host, target.host)

        def sent(time: float) -> None:
            envelope = queue.popleft()
            envelope.begun, envelope.arrived = now, time + route.latency
            self._timeline.at(envelope.arrived, lambda _: self._deliver(target, envelope))
            if queue:
                self._start(sender, target, queue, time)

        self._timeline.network.start(now, queue[0].size, route.crosses, sent)

    def receive(self, node: Node, effect: Receive) -> bool:
        """A worker takes what is there; a server first works off what it has taken."""
        if node.session is not None:
            if node.inbox:
                resume_worker(node, node.inbox.popleft())
                return False
            node.waits_for = effect
            return True
        now, until = node.me.now, effect.until
        if until is not None and now >= until:
            return self._wake(node)
        if now > self._timeline.now:
            # Meanwhile more may arrive, and a tick too: only then is known what is next, and how long the queue is.
            self._timeline.at(now, lambda _: self._receive_later(node, effect))
            return True
        if node.inbox:
            return self._take(node)
        node.waits_for = effect
        if until is not None and until != node.tick:
            node.tick = until
            self._ticks += 1
            self._timeline.at(until, partial(self._tick, node))
        return True

    def _receive_later(self, node: Node, effect: Receive) -> None:
        if not self.receive(node, effect):
            self._ready.append(node)

    def _tick(self, node: Node, now: float) -> None:
        self._ticks -= 1
        # Ticks could go on for ever where nothing else does.
        alone = self._timeline.planned == self._ticks and self._timeline.network.idle
        self._quiet = self._quiet + 1 if alone else 0
        if self._quiet > QUIET * len(self._simulation.servers):
            raise RunFailed(explain_deadlock(self._simulation.workers))
        if type(node.waits_for) is Receive and node.waits_for.until == now:
            node.me.now = now
            self._wake(node)
            self._ready.append(node)

    def _deliver(self, node: Node, envelope: SimulatedMessage) -> None:
        if node.gone:
            self._leaving -= bool(envelope.how)
        elif type(node.waits_for) is not Receive:
            node.inbox.append(envelope)
        elif node.session is not None:
            node.waits_for = None
            resume_worker(node, envelope)
            self._ready.append(node)
        else:
            node.inbox.append(envelope)
            self._take(node)
            self._ready.append(node)

    def _take(self, node: Node) -> bool:
        """Resume a server with the first message of its inbox."""
        me, depth = node.me, len(node.inbox)
        envelope = node.inbox.popleft()
        message, worker = envelope.message, envelope.sender.rank
        node.waits_for = None
        me.now = max(me.now, envelope.arrived)
        self._leaving -= bool(envelope.how)
        numbers = getattr(message, "clock", -1), getattr(message, "version", -1)
        self.note(node, Received(me.now, worker, type(message).__name__, *numbers, depth, envelope.how))
        me.now += self._simulation.costs.serve(me.rank, envelope.size)
        node.answer = (envelope.sender, message)
        return False

    def _wake(self, node: Node) -> bool:
        """Resume a server with nothing: the time until which it waits has come."""
        node.waits_for = None
        self.note(node, Ticked(node.me.now))
        node.answer = None
        return False


def resume_worker(node: Node, envelope: SimulatedMessage) -> None:
    """Resume a worker with a message; the time since it began to wait is communication, except where it was held back.

    An answer says for how long the server held it back. Any other message is waited for until its first byte leaves.
    """
    me, ledger = node.me, node.ledger
    ledger.moved(0, envelope.size)
    now, arrived = me.now, envelope.arrived
    if arrived > now:
        begun = max(now, envelope.begun)
        since = max(now, begun - getattr(envelope.message, "held", begun - now))
        ledger.span(COMMUNICATE, now, since - now)
        ledger.span(WAIT, since, begun - since)
        ledger.span(COMMUNICATE, begun, arrived - begun)
        me.now = arrived
    node.answer = (envelope.sender, envelope.message)

"""Messages in virtual time: how they travel, what they cost, and what the servers' logs say of them."""

import dataclasses
from collections import defaultdict, deque
from functools import cache, partial
from typing import Any

from torch import Tensor

from paceline.codecs.reduction import NotFinite
from paceline.errors import RunFailed
from paceline.records.servers import Entry, Received, Ticked
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.served_compression import is_encoded
from paceline.runtimes.virtual.collectives import VirtualCollectives
from paceline.runtimes.virtual.node import COMMUNICATE, WAIT, Node, explain_deadlock
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.effects import Peer, Receive, Send
from paceline.strategies.messages import Leave, Model, Push, message_bytes

QUIET = 8
"""Ticks of each server in which nothing else happens or is scheduled, before a run counts as stuck."""


class SimulatedTransport:
    """Messages over the links, in the order in which they arrive; those between two nodes keep their order.

    ``send`` and ``receive`` return whether the node has to wait.
    """

    def __init__(self, simulation: Simulation, collectives: VirtualCollectives) -> None:
        self._simulation, self._collectives = simulation, collectives
        self._ready, self._timeline = simulation.ready, simulation.timeline
        topology = simulation.topology
        self._to_server, self._from_server = cache(topology.to_server), cache(topology.from_server)
        self._queues: dict[tuple[Peer, Peer], deque[Envelope]] = defaultdict(deque)
        self._leaving = self._ticks = self._quiet = 0

    def is_over(self, workers: int) -> bool:
        """Whether nothing more is to happen: no worker is left, and the servers have all last messages."""
        return not (workers or self._leaving)

    def proceed(self) -> bool:
        return self._timeline.step()

    def note(self, node: Node, entry: Entry) -> None:
        """Count what a server received or did, and keep it where every step is kept."""
        node.totals.add(entry)
        if self._simulation.recorder.detailed:
            self._simulation.recorder.served(node.peer.rank, entry)

    def send(self, node: Node, effect: Send) -> bool:
        target, envelope = self._address(node, effect)
        self._spend_coding(node, effect.to if node.session else node.peer, envelope.message, encodes=True)
        self._timeline.at(node.me.now, partial(self._depart, node, target, envelope))
        return True

    def _spend_coding(self, node: Node, server: Peer, message: Any, *, encodes: bool) -> None:
        """A node encodes or decodes what is encoded of a message, and cannot do anything else meanwhile."""
        if not isinstance(message, Push | Model) or not is_encoded(message):
            return
        seconds = self._simulation.coding_seconds(node, server.rank, message, encodes=encodes)
        node.ledger.span(COMMUNICATE, node.me.now, seconds)
        node.me.now += seconds

    def _address(self, node: Node, effect: Send) -> tuple[Node, Envelope]:
        target = self._simulation.nodes.get(effect.to)
        if target is None:
            raise RunFailed(f"{node} sends to {effect.to.role} {effect.to.rank}, and there is no such node")
        try:
            message = node.messages.encoded(effect.to.rank, effect.message)
        except NotFinite as error:
            raise node.replica.not_finite(error, node.me, effect) from error
        if message is effect.message and node.replica is not None:
            message = copy_message(message)
        size = message_bytes(message)
        node.ledger.moved(size, 0)
        return target, Envelope(message, node.peer, size=size)

    def _depart(self, node: Node, target: Node, envelope: Envelope, now: float) -> None:
        if not node.gone:
            if node.session is None and node.peer.rank == 0:
                self._collectives.admit(target)
            self._enqueue(node, target, envelope, now)
            self._ready.append(node)

    def leave(self, node: Node, how: str, now: float) -> None:
        """Tell the servers that a worker is gone, behind its other messages."""
        leave = Leave(node.me.clock)
        for server in self._simulation.servers:
            self._leaving += 1
            envelope = Envelope(leave, node.peer, size=message_bytes(leave), how=how)
            self._timeline.at(now, partial(self._enqueue, node, server, envelope))

    def _enqueue(self, sender: Node, target: Node, envelope: Envelope, now: float) -> None:
        queue = self._queues[sender.peer, target.peer]
        queue.append(envelope)
        if len(queue) == 1:
            self._start(sender, target, queue, now)

    def _start(self, sender: Node, target: Node, queue: deque[Envelope], now: float) -> None:
        route = (self._from_server if sender.session is None else self._to_server)(sender.host, target.host)

        def sent(time: float) -> None:
            envelope = queue.popleft()
            envelope.begun, envelope.arrived = now, time + route.latency
            self._timeline.at(envelope.arrived, lambda _: self._deliver(target, envelope))
            if queue:
                self._start(sender, target, queue, time)

        self._timeline.network.start(now, queue[0].size, route.crosses, sent)

    def receive(self, node: Node, effect: Receive) -> bool:
        """A worker takes what has arrived; a server first finishes what it has taken."""
        now, until = node.me.now, effect.until
        if node.session is None:
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
        alone = len(self._timeline.planned) == self._ticks and self._timeline.network.idle
        self._quiet = self._quiet + 1 if alone else 0
        if self._quiet > QUIET * len(self._simulation.servers):
            raise RunFailed(explain_deadlock(self._simulation.workers))
        if type(node.waits_for) is Receive and node.waits_for.until == now:
            node.me.now = now
            self._wake(node)
            self._ready.append(node)

    def _deliver(self, node: Node, envelope: Envelope) -> None:
        if node.gone:
            self._leaving -= bool(envelope.how)
            return
        node.inbox.append(envelope)
        if type(node.waits_for) is Receive:
            self._take(node)
            self._ready.append(node)

    def _take(self, node: Node) -> bool:
        me, depth = node.me, len(node.inbox)
        envelope = node.inbox.popleft()
        sender = envelope.sender
        message = node.messages.decoded(sender.rank, envelope.message)
        node.waits_for, node.answer = None, (sender, message)
        if node.session is not None:
            _count_receipt(node, envelope)
            self._spend_coding(node, sender, envelope.message, encodes=False)
            return False
        me.now = max(me.now, envelope.arrived)
        self._leaving -= bool(envelope.how)
        numbers = getattr(message, "clock", -1), getattr(message, "version", -1)
        self.note(node, Received(me.now, sender.rank, type(message).__name__, *numbers, depth, envelope.how))
        me.now += self._simulation.costs.times.serve
        self._spend_coding(node, node.peer, envelope.message, encodes=False)
        return False

    def _wake(self, node: Node) -> bool:
        node.waits_for = node.answer = None
        self.note(node, Ticked(node.me.now))
        return False


def _count_receipt(node: Node, envelope: Envelope) -> None:
    """Count a worker's time since it began to wait: communication, except where the message was held back.

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


def copy_message(message: Any) -> Any:
    """The message as it is now: its sender may change its tensors later."""
    tensors = {
        field.name: value.clone()
        for field in dataclasses.fields(message)
        if isinstance(value := getattr(message, field.name), Tensor)
    }
    return dataclasses.replace(message, **tensors) if tensors else message

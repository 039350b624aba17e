"""Messages in virtual time: how they travel, what they cost whom, and what the servers' logs say of them."""

from collections import deque
from functools import partial
from typing import Any, Protocol

from paceline.errors import RunFailed
from paceline.records.servers import Entry, Received, Ticked
from paceline.runtimes.virtual.books import COMMUNICATE, WAIT
from paceline.runtimes.virtual.circle import VirtualCollectives
from paceline.runtimes.virtual.node import Delivery, Letter, Node
from paceline.runtimes.virtual.post import Post
from paceline.runtimes.virtual.stuck import explain
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies.effects import Receive, Send
from paceline.strategies.messages import Leave, message_bytes

QUIET = 8
"""Ticks of each server in which nothing else happens or is planned, before a run counts as stuck."""


class Mail(Protocol):
    """Who carries messages, and decides what happens next when nobody can go on by himself."""

    @property
    def pending(self) -> bool:
        """Whether a server has still to be told something although no worker is left."""

    @property
    def over(self) -> bool:
        """Whether nothing more is to happen, although workers are left."""

    def send(self, node: Node, effect: Send) -> bool:
        """Take a message; whether the sender has to wait."""

    def receive(self, node: Node, effect: Receive) -> bool:
        """Hand out a message; whether the receiver has to wait."""

    def farewell(self, node: Node, how: str, now: float) -> None:
        """Tell the servers that a worker is gone."""

    def note(self, node: Node, entry: Entry) -> None:
        """A server did something that belongs into its log."""

    def proceed(self) -> bool:
        """Let the next thing happen; False where nothing will."""


class NetworkMail:
    """Messages over the links, in the order in which they arrive."""

    def __init__(
        self, world: World, timeline: Timeline, ready: deque[Node], circle: VirtualCollectives
    ) -> None:
        """``ready`` is where nodes are put that may go on."""
        self._world, self._timeline, self._ready, self._circle = world, timeline, ready, circle
        self._post = Post(timeline, world.topology, self._deliver)
        self._farewells = self._ticks = self._quiet = 0

    @property
    def pending(self) -> bool:
        """Whether a worker's last message is still under way."""
        return self._farewells > 0

    @property
    def over(self) -> bool:
        """Links know of no end."""
        return False

    def proceed(self) -> bool:
        """Go to the next moment at which something happens."""
        return self._timeline.step()

    def send(self, node: Node, effect: Send) -> bool:
        """The letter leaves when the timeline has come to where its sender is."""
        target = self._world.addressee(node, effect)
        shape = self._world.shape
        size = shape.message_bytes(effect.message)
        node.books.moved(size, 0)
        letter = Letter(node.peer, self._world.mathematics.copy(effect.message), size)
        self._timeline.at(
            node.me.now + shape.coding(effect.message), partial(self._depart, node, target, letter)
        )
        return True

    def _depart(self, node: Node, target: Node, letter: Letter, now: float) -> None:
        if node.gone:
            return
        if node.session is None and node.peer.rank == 0:
            self._circle.admit(target)
        self._post.send(now, node, target, letter)
        self._ready.append(node)

    def farewell(self, node: Node, how: str, now: float) -> None:
        """Leave goes the way of the worker's other messages, behind them."""
        left = Leave(node.me.clock)
        for server in self._world.servers:
            self._farewells += 1
            letter = Letter(node.peer, left, message_bytes(left), how)
            self._timeline.at(now, lambda time, to=server, it=letter: self._post.send(time, node, to, it))  # type: ignore[misc]

    def receive(self, node: Node, effect: Receive) -> bool:
        """A worker takes what is there; a server first works off what it has taken."""
        if node.session is not None:
            if node.inbox:
                open_letter(node, node.inbox.popleft())
                return False
            node.waits_for = effect
            return True
        now, until = node.me.now, effect.until
        if until is not None and now >= until:
            return self._wake(node)
        if now > self._timeline.now:
            # Meanwhile more may come, and a tick too: only then is known what is next, and how long the queue is.
            self._timeline.at(now, partial(self._resume, node, effect))
            return True
        if node.inbox:
            return self._take(node)
        node.waits_for = effect
        if until is not None and until != node.tick:
            node.tick = until
            self._ticks += 1
            self._timeline.at(until, partial(self._tick, node))
        return True

    def _resume(self, node: Node, effect: Receive, now: float) -> None:  # noqa: ARG002
        if not self.receive(node, effect):
            self._ready.append(node)

    def _tick(self, node: Node, now: float) -> None:
        self._ticks -= 1
        self._notice_silence()
        if type(node.waits_for) is Receive and node.waits_for.until == now:
            node.me.now = now
            self._wake(node)
            self._ready.append(node)

    def _notice_silence(self) -> None:
        """Ticks could go on for ever where nothing else does."""
        alone = self._timeline.planned == self._ticks and self._timeline.network.idle
        self._quiet = self._quiet + 1 if alone else 0
        if self._quiet > QUIET * len(self._world.servers):
            raise RunFailed(explain(self._world.workers))

    def _deliver(self, node: Node, delivery: Delivery) -> None:
        if node.gone:
            self._farewells -= bool(delivery.letter.how)
        elif type(node.waits_for) is not Receive:
            node.inbox.append(delivery)
        elif node.session is not None:
            node.waits_for = None
            open_letter(node, delivery)
            self._ready.append(node)
        else:
            node.inbox.append(delivery)
            self._take(node)
            self._ready.append(node)

    def _take(self, node: Node) -> bool:
        """Resume a server with the first letter of its inbox."""
        me, depth = node.me, len(node.inbox)
        delivery = node.inbox.popleft()
        letter, message = delivery.letter, delivery.letter.message
        node.waits_for = None
        me.now = max(me.now, delivery.arrived)
        self._farewells -= bool(letter.how)
        entry = Received(
            me.now, letter.sender.rank, type(message).__name__, *_numbers(message), depth, letter.how
        )
        self.note(node, entry)
        me.now += self._world.costs.serve(me.rank, letter.size)
        node.answer = (letter.sender, message)
        return False

    def _wake(self, node: Node) -> bool:
        """Resume a server with nothing: the time for which it has waited has come."""
        node.waits_for = None
        self.note(node, Ticked(node.me.now))
        node.answer = None
        return False

    def note(self, node: Node, entry: Entry) -> None:
        """Count what a server received or did, and keep it where every step is kept."""
        node.totals.add(entry)
        if self._world.recorder.detailed:
            self._world.recorder.served(node.peer.rank, entry)


def open_letter(node: Node, delivery: Delivery) -> None:
    """Resume a worker with a letter; the time since its own is communication, except where it had to wait.

    An answer says for how long it was held back. Anything else is waited for until its first byte leaves.
    """
    me, books, letter = node.me, node.books, delivery.letter
    books.moved(0, letter.size)
    now, arrived = me.now, delivery.arrived
    if arrived > now:
        begun = max(now, delivery.begun)
        since = max(now, begun - getattr(letter.message, "held", begun - now))
        books.span(COMMUNICATE, now, since - now)
        books.span(WAIT, since, begun - since)
        books.span(COMMUNICATE, begun, arrived - begun)
        me.now = arrived
    node.answer = (letter.sender, letter.message)


def _numbers(message: Any) -> tuple[int, int]:
    """A message's clock and version, where it has them."""
    return getattr(message, "clock", -1), getattr(message, "version", -1)

"""The virtual runtime's heart: runs every node's program and carries out its effects on an event clock."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.errors import RunFailed
from paceline.jobs.sharding import scoring_batches
from paceline.runtimes.session import Evaluate, Export, Save
from paceline.runtimes.virtual.books import APPLY, CHECKPOINT, COMMUNICATE, EVALUATE, WAIT
from paceline.runtimes.virtual.circle import Circle
from paceline.runtimes.virtual.node import Delivery, Letter, Node
from paceline.runtimes.virtual.post import Post, message_bytes
from paceline.runtimes.virtual.stuck import explain
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies.base import Meets
from paceline.strategies.effects import AllReduce, Apply, Broadcast, Gradient, Peer, Receive, Send
from paceline.strategies.messages import Left


class Engine:
    """Runs nodes until every worker has ended.

    What a node does alone only moves its own clock, however far ahead; whatever reaches others goes through
    the timeline, in order of time. A step of N workers costs N resumptions and, with collectives only, no event.
    """

    def __init__(self, world: World, timeline: Timeline) -> None:
        self._world, self._timeline, self._mathematics = world, timeline, world.mathematics
        self._ready: deque[Node] = deque()
        self._nodes: Mapping[Peer, Node] = {node.peer: node for node in (*world.workers, *world.servers)}
        self._circle = Circle(world, timeline, self._ready)
        self._post = Post(timeline, world.topology, self._deliver)
        self._running = len(world.workers)
        self._by_step = world.strategy.meets is Meets.STEP
        self._share_buffers = world.share_buffers and len(world.workers) > 1 and world.shape.buffers > 0
        self._steady = world.costs.steady
        self._steps_per_epoch = world.shards.steps_per_epoch
        # Each carries one effect out, and says whether the node now has to wait.
        self._messages: dict[type, Callable[[Node, Any], bool]] = {Send: self._send, Receive: self._receive}
        self._effects: dict[type, Callable[[Node, Any], bool]] = {
            **self._messages,
            AllReduce: self._circle.join_all_reduce,
            Broadcast: self._circle.join_broadcast,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }

    def run(self) -> None:
        """Run to the end; a RunFailed says who waits for what where nothing can go on."""
        ready, step = self._ready, self._timeline.step
        ready.extend((*self._world.servers, *self._world.workers))
        while self._running:
            while ready:
                node = ready.popleft()
                if node.session is None:
                    self._serve(node)
                else:
                    self._work(node)
            if self._running and not step():
                raise RunFailed(explain(self._world.workers))
        for server in self._world.servers:
            server.program.close()

    def drop(self, node: Node) -> None:
        """A node dies: its program ends where it is, which may be ahead of the timeline, and the servers hear of it."""
        node.program.close()
        self._leave(node)

    def _work(self, node: Node) -> None:
        """Run a worker's program until it has to wait for somebody."""
        send = node.program.send
        answer, effect = node.answer, node.postponed
        node.answer = node.postponed = None
        while True:
            if effect is None:
                try:
                    effect = send(answer)
                except StopIteration as end:
                    node.ending = end.value
                    self._leave(node)
                    return
            answer = None
            kind = type(effect)
            if kind is Gradient:
                if self._gradient(node, effect):
                    return
            elif kind is Apply:
                self._apply(node)
            else:
                if node.session.meeting:  # type: ignore[union-attr]
                    node.books.meet(node.me.clock)
                if self._effects[kind](node, effect):
                    return
                answer, node.answer = node.answer, None
            effect = None

    def _serve(self, node: Node) -> None:
        """Run a server's program until it has to wait for a message."""
        try:
            while True:
                effect = node.program.send(node.answer)
                node.answer = None
                if type(effect) not in self._messages:
                    raise RunFailed(f"{node} asks for {type(effect).__name__}; servers only send and receive")
                if self._messages[type(effect)](node, effect):
                    return
        except StopIteration:
            node.gone = True

    def _gradient(self, node: Node, effect: Gradient) -> bool:
        me, books, reduce = node.me, node.books, effect.reduce
        clock, rank = me.clock, me.rank
        if not node.shared:
            books.close(clock)
            if self._share_buffers:
                return self._share_first(node, effect)
        node.shared = False
        if self._steady:
            times, samples = node.prices[(clock + 1) % self._steps_per_epoch == 0]
        else:
            samples = self._world.shards.size(rank, clock)
            times = self._world.costs.gradient(rank, samples, clock)
        data, forward, backward = times
        start = me.now
        books.gradient(start, times, samples)
        node.begun = begun = start + data + forward
        node.ended = ended = begun + backward
        me.samples = samples
        me.samples_apart += samples
        self._mathematics.gradient(rank, clock, samples, reduce is not None)
        if reduce is None:
            me.now = ended
            return False
        return self._circle.join_gradient(node, effect)

    def _share_first(self, node: Node, effect: Gradient) -> bool:
        """Take rank 0's buffers over, then come back for the gradient."""
        node.shared, node.postponed = True, effect
        return self._circle.join_broadcast(node, Broadcast(node.me.buffers))

    def _apply(self, node: Node) -> None:
        me, session, rank = node.me, node.session, node.me.rank
        assert session is not None
        clock, now = me.clock, me.now
        seconds = node.apply_seconds if self._steady else self._world.costs.apply(rank, clock)
        self._mathematics.apply(rank, session)
        node.books.span(APPLY, now, seconds)
        me.now = now = now + seconds
        me.clock = clock + 1
        if rank == 0:
            progress = clock + 1 if self._by_step else session.position.progress
            self._world.observer.stepped(
                progress, self._world.shards.total(clock), self._mathematics.loss, now
            )

    def _send(self, node: Node, effect: Send) -> bool:
        target = self._nodes.get(effect.to)
        if target is None:
            raise RunFailed(f"{node} sends to {effect.to.role} {effect.to.rank}, and there is no such node")
        size = message_bytes(effect.message)
        node.books.moved(size, 0)
        letter = Letter(node.peer, self._mathematics.copy(effect.message), size)
        self._timeline.at(node.me.now, partial(self._depart, node, target, letter))
        return True

    def _depart(self, node: Node, target: Node, letter: Letter, now: float) -> None:
        """The timeline has come to where the sender is: the letter leaves, and the sender goes on."""
        self._post.send(now, node, target, letter)
        if not node.gone:
            self._ready.append(node)

    def _receive(self, node: Node, effect: Receive) -> bool:
        if node.inbox:
            self._open(node, node.inbox.popleft())
            return False
        node.waits_for = effect
        return True

    def _deliver(self, node: Node, delivery: Delivery) -> None:
        if node.gone:
            return
        if type(node.waits_for) is Receive:
            node.waits_for = None
            self._open(node, delivery)
            self._ready.append(node)
        else:
            node.inbox.append(delivery)

    def _open(self, node: Node, delivery: Delivery) -> None:
        """Resume the program with a letter: its transfer is communication, the time before it waiting."""
        me, letter = node.me, delivery.letter
        node.books.moved(0, letter.size)
        if delivery.arrived > me.now:
            begun = max(me.now, delivery.begun)
            node.books.span(WAIT, me.now, begun - me.now)
            node.books.span(COMMUNICATE, begun, delivery.arrived - begun)
            me.now = delivery.arrived
        if node.session is None:
            me.now += self._world.costs.serve(me.rank, letter.size)
        node.answer = (letter.sender, letter.message)

    def _evaluate(self, node: Node, effect: Evaluate) -> bool:
        world, rank, workers = self._world, node.me.rank, len(self._world.workers)
        node.answer = self._mathematics.evaluate(rank, effect.params, effect.buffers)
        samples = sum(map(len, scoring_batches(world.shape.test_samples, rank, workers)))
        self._spend(node, EVALUATE, world.costs.evaluate(rank, samples))
        return False

    def _save(self, node: Node, _: Save) -> bool:
        self._spend(
            node, CHECKPOINT, self._world.costs.checkpoint(node.me.rank, self._world.shape.state_bytes)
        )
        return False

    def _export(self, node: Node, effect: Export) -> bool:
        if node.me.rank == 0 and (state := self._mathematics.export(0, effect.params, effect.buffers)):
            self._world.recorder.exported(state)
        return False

    def _spend(self, node: Node, kind: int, seconds: float) -> None:
        node.books.span(kind, node.me.now, seconds)
        node.me.now += seconds

    def _leave(self, node: Node) -> None:
        """A node is gone; where it was a worker, the servers get its last message."""
        if node.gone:
            return  # dropped before, and resumed by something that it had waited for
        node.gone = True
        if node.session is None:
            return
        node.books.close(node.me.clock)
        self._running -= 1
        for server in self._world.servers:
            left = Left(node.me.clock)
            letter = Letter(node.peer, left, message_bytes(left))
            self._timeline.at(node.me.now, partial(self._depart, node, server, letter))

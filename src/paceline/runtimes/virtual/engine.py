"""The virtual runtime's heart: runs every node's program and carries out its effects on an event clock."""

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from paceline.errors import RunFailed
from paceline.jobs.sharding import scoring_batches
from paceline.records.servers import Updated
from paceline.runtimes.session import Evaluate, Export, Save
from paceline.runtimes.virtual.books import APPLY, CHECKPOINT, EVALUATE, WAIT
from paceline.runtimes.virtual.circle import VirtualCollectives
from paceline.runtimes.virtual.mail import Mail, NetworkMail
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.stuck import explain
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import AllReduce, Apply, Broadcast, Clock, Gradient, Receive, Send

Carrier = Callable[[World, Timeline, deque[Node], VirtualCollectives], Mail]
"""Makes who carries messages between the nodes of a world."""


class Engine:
    """Runs nodes until every worker has ended, or until the horizon.

    What a node does alone only moves its own clock, however far ahead; whatever reaches others goes through
    the timeline, in order of time. A step of N workers costs N resumptions and, with collectives only, no event.
    """

    def __init__(self, world: World, timeline: Timeline, carrier: Carrier = NetworkMail) -> None:
        """``carrier`` makes the one who carries messages."""
        self._world, self._timeline, self._mathematics = world, timeline, world.mathematics
        self._ready: deque[Node] = deque()
        self._circle = VirtualCollectives(world, timeline, self._ready)
        self._mail: Mail = carrier(world, timeline, self._ready, self._circle)
        self._running = len(world.workers)
        self._finished = False
        self.over = False
        """Whether the run ended before its workers did."""
        self._by_step = world.strategy.sync_point is SyncPoint.EVERY_STEP
        self._told = 0
        self._share_buffers = world.share_buffers and len(world.workers) > 1 and world.shape.buffers > 0
        self._steady = world.costs.steady
        self._steps_per_epoch = world.shards.steps_per_epoch
        # Each carries one effect out, and says whether the node now has to wait.
        self._serving: dict[type, Callable[[Node, Any], bool]] = {
            Send: self._mail.send,
            Receive: self._mail.receive,
            Apply: self._update,
        }
        self._effects: dict[type, Callable[[Node, Any], bool]] = {
            Send: self._mail.send,
            Receive: self._mail.receive,
            Clock: self._clock,
            AllReduce: self._circle.join_all_reduce,
            Broadcast: self._circle.join_broadcast,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }

    def run(self) -> None:
        """Run to the end; a RunFailed says who waits for what where nothing can go on."""
        ready, mail = self._ready, self._mail
        self._begin()
        while True:
            while ready:
                node = ready.popleft()
                if node.session is None:
                    self._serve(node)
                else:
                    self._work(node)
            if self.over or mail.over or not (self._running or mail.pending):
                break
            if not mail.proceed():
                raise RunFailed(explain(self._world.workers))
        for node in (*self._world.workers, *self._world.servers):
            node.program.close()

    def _begin(self) -> None:
        """Servers first, then the workers in order of their ranks, each at its time."""
        world, at = self._world, self._timeline.at
        self._ready.extend(world.servers)
        for node in world.workers:
            if node.starts > 0:
                at(node.starts, partial(self._start, node))
            else:
                self._ready.append(node)
            if node.dies < inf:
                at(node.dies, partial(self._die, node))
        if world.horizon < inf:
            at(world.horizon, self._stop)

    def _start(self, node: Node, now: float) -> None:
        if not node.gone:
            node.me.now = now
            self._ready.append(node)

    def _stop(self, now: float) -> None:
        """The horizon is reached: whoever still works is left where it is."""
        self.over = True
        for node in self._world.workers:
            if not node.gone:
                self._close(node, now)

    def _die(self, node: Node, now: float) -> None:
        """A worker's program ends where it is, and the servers hear of it."""
        if not node.gone:
            node.program.close()
            self._close(node, now)
            self._leave(node, "died", now)

    def _close(self, node: Node, now: float) -> None:
        """Bring the books of a worker that is cut off up to the present."""
        me = node.me
        if me.now < now and now > node.starts:
            node.books.span(WAIT, me.now, now - me.now)
        me.now = now
        node.books.cut(me.clock)

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
                    node.books.close(node.me.clock)
                    self._leave(node, "finished", node.me.now)
                    return
            answer = None
            kind = type(effect)
            if kind is Gradient:
                if self._gradient(node, effect):
                    return
            elif kind is Apply:
                self._apply(node, effect)
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
                if type(effect) not in self._serving:
                    raise RunFailed(
                        f"{node} asks for {type(effect).__name__}; servers only send, receive and apply"
                    )
                if self._serving[type(effect)](node, effect):
                    return
        except StopIteration:
            node.gone = True

    def _update(self, node: Node, effect: Apply) -> bool:
        """A server's step, at the learning rate of the epoch that its samples so far belong to."""
        me, world = node.me, self._world
        epoch = world.agenda.epoch(world.shards.steps_through(me.seen))
        self._mathematics.update(me.rank, epoch, effect.rate)
        me.version += 1
        me.seen += sum(credit.samples for credit in effect.gradients)
        share = me.params.numel() / world.shape.size
        me.now += world.costs.update(me.rank, share, len(effect.gradients))
        self._mail.note(node, Updated(me.now, me.version, effect.gradients))
        return False

    def _gradient(self, node: Node, effect: Gradient) -> bool:
        me, books, reduce = node.me, node.books, effect.reduce
        clock, rank = me.clock, me.rank
        if not node.shared:
            books.close(clock)
            if clock >= node.steps:
                return self._depart(node)
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
        node.begun = begun = start + data + forward
        node.ended = ended = begun + backward
        if ended > node.ends:
            books.unfinished(start, times, node.ends)
            node.waits_for, me.now = effect, node.ends
            return True
        books.gradient(start, times, samples)
        me.samples = samples
        me.samples_since_sync += samples
        self._mathematics.gradient(rank, clock, samples, reduce is not None)
        if reduce is None:
            me.now = ended
            return False
        return self._circle.join_gradient(node, effect)

    def _depart(self, node: Node) -> bool:
        """A worker has taken the steps that it came for."""
        node.program.close()
        node.ending = "left"
        self._leave(node, "left", node.me.now)
        return True

    def _share_first(self, node: Node, effect: Gradient) -> bool:
        """Take rank 0's buffers over, then come back for the gradient."""
        node.shared, node.postponed = True, effect
        return self._circle.join_broadcast(node, Broadcast(node.me.buffers))

    def _apply(self, node: Node, effect: Apply) -> None:
        me, session, rank = node.me, node.session, node.me.rank
        assert session is not None
        clock, now = me.clock, me.now
        seconds = node.apply_seconds if self._steady else self._world.costs.apply(rank, clock)
        self._mathematics.apply(rank, session, effect.rate)
        node.books.span(APPLY, now, seconds)
        me.now = now = now + seconds
        me.clock = clock + 1
        if rank == 0:
            progress = clock + 1 if self._by_step else session.position.progress
            self._world.observer.stepped(
                progress, self._world.shards.total(clock), self._mathematics.loss, now
            )

    def _clock(self, node: Node, _: Clock) -> bool:
        """A step ends; whoever speaks for the others says how far the servers have come since it last did."""
        me = node.me
        me.clock += 1
        if self._told < me.seen:
            progress = self._world.shards.steps_through(me.seen)
            self._world.observer.stepped(progress, me.seen - self._told, self._mathematics.loss, me.now)
            self._told = me.seen
        return False

    def _evaluate(self, node: Node, effect: Evaluate) -> bool:
        world, rank, share = self._world, node.me.rank, self._circle.share(node)
        node.answer = self._mathematics.evaluate(rank, effect.params, effect.buffers, share)
        samples = sum(map(len, scoring_batches(world.shape.test_samples, *share)))
        self._spend(node, EVALUATE, world.costs.evaluate(rank, samples))
        return False

    def _save(self, node: Node, _: Save) -> bool:
        self._spend(
            node, CHECKPOINT, self._world.costs.checkpoint(node.me.rank, self._world.shape.state_bytes)
        )
        return False

    def _export(self, node: Node, effect: Export) -> bool:
        if self._circle.share(node)[0] == 0:
            state = self._mathematics.export(node.me.rank, effect.params, effect.buffers)
            if state:
                self._world.recorder.exported(state)
        return False

    def _spend(self, node: Node, kind: int, seconds: float) -> None:
        node.books.span(kind, node.me.now, seconds)
        node.me.now += seconds

    def _leave(self, node: Node, how: str, now: float) -> None:
        """A worker is gone: nobody waits for it, and the servers get its last message."""
        node.gone = True
        self._running -= 1
        self._mail.farewell(node, how, now)
        self._circle.dismiss(node)
        if how == "finished" and not self._finished:
            self._finished = True
            self._shut_out(now)

    def _shut_out(self, now: float) -> None:
        """The run is over: whoever has not been let in came too late."""
        late = [node for node in self._world.workers if not node.gone and not self._circle.includes(node)]
        for node in late:
            node.program.close()
            self._close(node, now)
            if node.starts < now:
                self._leave(node, "left", now)
            else:  # nobody has ever heard of it
                node.gone = True
                self._running -= 1

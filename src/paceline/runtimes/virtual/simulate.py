"""Run a training in virtual time: every node's program, and its effects."""

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

from paceline.errors import RunFailed, UsageError, raised
from paceline.jobs.sharding import scoring_batches
from paceline.records.servers import Updated
from paceline.records.summary import Summary
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.session import Evaluate, Export, Save
from paceline.runtimes.virtual.collectives import VirtualCollectives
from paceline.runtimes.virtual.node import APPLY, CHECKPOINT, EVALUATE, WAIT, Node, explain_deadlock
from paceline.runtimes.virtual.simulation import Simulation, check
from paceline.runtimes.virtual.transport import SimulatedTransport
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    Clock,
    Gradient,
    Receive,
    Send,
    StartAllReduce,
    Wait,
)

Effects = dict[type, Callable[[Node, Any], bool]]
"""What carries each kind of effect out; it returns whether the node now has to wait."""
Transport = Callable[[Simulation, VirtualCollectives], SimulatedTransport]


class VirtualEngine:
    """Runs nodes until every worker has ended, or until the horizon.

    What a node does alone only moves its own clock, however far ahead; whatever reaches others goes through the
    timeline, in order of time. A step of N workers costs N resumptions and, with collectives only, no event.
    """

    def __init__(self, simulation: Simulation, transport: Transport) -> None:
        prepared = simulation.prepared
        self._simulation, self._ready, self._shards = simulation, simulation.ready, prepared.shards
        self._loss = nan
        self._collectives = VirtualCollectives(simulation)
        self._transport = transport(simulation, self._collectives)
        self._running = len(simulation.workers)
        self._finished = self._over = False
        self._by_step = prepared.strategy.sync_point is SyncPoint.EVERY_STEP
        self._reported = 0
        shares = prepared.settings.buffers == "rank0" and simulation.shape.buffers > 0
        self._share_buffers = shares and len(simulation.workers) > 1
        """Whether every worker takes over rank 0's buffers before each forward."""
        self._steady = simulation.steady
        self._steps_per_epoch = prepared.shards.steps_per_epoch
        messages: Effects = {Send: self._transport.send, Receive: self._transport.receive}
        self._serving: Effects = {**messages, Apply: self._update}
        self._effects: Effects = {
            **messages,
            Clock: self._clock,
            AllReduce: self._collectives.join,
            Broadcast: self._collectives.join,
            StartAllReduce: self._collectives.start,
            Wait: self._collectives.wait,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }

    def run(self) -> Summary:
        """Run to the end; a RunFailed says which node waits for what where no program can be resumed."""
        simulation, ready, transport = self._simulation, self._ready, self._transport
        simulation.start()
        self._begin()
        while True:
            while ready:
                node = ready.popleft()
                if node.session is None:
                    self._serve(node)
                else:
                    self._work(node)
            if self._over or transport.is_over(self._running):
                break
            if not transport.proceed():
                raise RunFailed(explain_deadlock(simulation.workers))
        for node in simulation.nodes.values():
            node.program.close()
        return simulation.finish()

    def _begin(self) -> None:
        simulation, at = self._simulation, self._simulation.timeline.at
        self._ready.extend(simulation.servers)
        for node in simulation.workers:
            if node.starts > 0:
                at(node.starts, partial(self._start, node))
            else:
                self._ready.append(node)
            if node.dies < inf:
                at(node.dies, partial(self._die, node))
        if simulation.deadline < inf:
            at(simulation.deadline, self._stop)

    def _start(self, node: Node, now: float) -> None:
        if not node.gone:
            node.me.now = now
            self._ready.append(node)

    def _stop(self, now: float) -> None:
        self._over = True
        for node in self._simulation.workers:
            if not node.gone:
                self._close(node, now)

    def _die(self, node: Node, now: float) -> None:
        if not node.gone:
            self._close(node, now)
            self._leave(node, "died", now)

    def _close(self, node: Node, now: float) -> None:
        """End a worker where it is: its time counts up to now, its open step only if it was complete."""
        me, record = node.me, node.ledger.record
        node.program.close()
        if me.now < now and now > node.starts:
            node.ledger.span(WAIT, me.now, now - me.now)
        me.now = now
        record.is_step = record.is_step and me.clock > record.step
        node.ledger.close(me.clock)

    def _leave(self, node: Node, how: str, now: float) -> None:
        """A worker is gone: no other waits for it, and the servers get its last message."""
        node.gone = True
        self._running -= 1
        self._transport.leave(node, how, now)
        self._collectives.remove(node)
        if how == "finished" and not self._finished:
            self._finished = True
            self._shut_out(now)

    def _shut_out(self, now: float) -> None:
        for node in self._simulation.workers:
            if node.gone or self._collectives.includes(node):
                continue
            self._close(node, now)
            if node.starts < now:
                self._leave(node, "left", now)
            else:  # no server knows of it
                node.gone = True
                self._running -= 1

    def _work(self, node: Node) -> None:
        send, ledger, me = node.program.send, node.ledger, node.me
        answer, effect = node.answer, node.postponed
        node.answer = node.postponed = None
        if effect is not None and self._gradient(node, effect):
            return
        while True:
            try:
                effect = send(answer)
            except StopIteration as end:
                node.ending = end.value
                ledger.close(me.clock)
                self._leave(node, "finished", me.now)
                return
            answer = None
            kind = type(effect)
            if kind is Gradient:
                ledger.close(me.clock)
                if self._share_buffers or me.clock >= node.steps:
                    self._hold_back(node, effect)
                    return
                if self._gradient(node, effect):
                    return
            elif kind is Apply:
                self._apply(node, effect)
            else:
                if node.session.at_sync_point and ledger.record.is_step:  # type: ignore[union-attr]
                    ledger.close(me.clock)
                if self._effects[kind](node, effect):
                    return
                answer, node.answer = node.answer, None

    def _serve(self, node: Node) -> None:
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
        me, simulation = node.me, self._simulation
        epoch = simulation.prepared.triggers.epoch(self._shards.steps_through(me.seen))
        if node.replica is not None:
            node.replica.apply(epoch, effect.rate)
        me.version += 1
        me.seen += sum(credit.samples for credit in effect.gradients)
        share = me.params.numel() / simulation.shape.size
        me.now += simulation.costs.update(share, len(effect.gradients))
        self._transport.note(node, Updated(me.now, me.version, effect.gradients))
        return False

    def _hold_back(self, node: Node, effect: Gradient) -> None:
        """Leave after all steps that the host allows, or take over rank 0's buffers before the gradient."""
        if node.me.clock >= node.steps:
            node.program.close()
            node.ending = "left"
            self._leave(node, "left", node.me.now)
        else:
            node.postponed = effect
            self._collectives.join(node, Broadcast(node.me.buffers))

    def _gradient(self, node: Node, effect: Gradient) -> bool:
        me, ledger, reduce = node.me, node.ledger, effect.reduce
        clock, rank = me.clock, me.rank
        if effect.batch is not None:
            samples = me.clients.size(effect.batch, rank)
            times = self._simulation.costs.gradient(rank, samples, clock)
        elif self._steady:
            times, samples = node.prices[(clock + 1) % self._steps_per_epoch == 0]
        else:
            samples = self._shards.size(rank, clock)
            times = self._simulation.costs.gradient(rank, samples, clock)
        data, forward, backward = times
        start = me.now
        node.begun = begun = start + data + forward
        node.ended = ended = begun + backward
        if ended > node.ends:
            ledger.unfinished(start, times, node.ends)
            node.waits_for, me.now = effect, node.ends
            return True
        ledger.gradient(start, times, samples)
        me.samples = samples
        me.samples_since_sync += samples
        if node.replica is not None:
            # Scaled so that all workers' add up to the mean over their samples.
            share = 1.0 if reduce is None else samples / self._shards.total(clock)
            try:
                with node.replica.randomness():
                    loss = node.replica.gradient(clock, share, batch=effect.batch)
            except (RunFailed, UsageError):
                raise
            except Exception as error:  # of the job's own code
                raise RunFailed(f"worker {rank} failed at step {clock + 1}: {raised(error)}") from error
            if rank == 0 and samples:
                self._loss = loss
        if reduce is None:
            me.now = ended
            return False
        return self._collectives.join(node, effect)

    def _apply(self, node: Node, effect: Apply) -> None:
        me, session, rank = node.me, node.session, node.me.rank
        assert session is not None
        clock, now = me.clock, me.now
        seconds = node.apply_seconds if self._steady else self._simulation.costs.apply(rank, clock)
        if node.replica is not None:
            epoch = session.position.progress / self._steps_per_epoch
            me.rate_factor = node.replica.apply(epoch, effect.rate, fresh=effect.fresh)
        node.ledger.span(APPLY, now, seconds)
        me.now = now = now + seconds
        me.clock = clock + 1
        if rank == 0:
            progress = clock + 1 if self._by_step else session.position.progress
            samples = me.samples * me.workers if me.clients.sizes else self._shards.total(clock)
            self._simulation.observer.stepped(progress, samples, self._loss, now)

    def _clock(self, node: Node, _: Clock) -> bool:
        me = node.me
        me.clock += 1
        if self._reported < me.seen:
            progress = self._shards.steps_through(me.seen)
            self._simulation.observer.stepped(progress, me.seen - self._reported, self._loss, me.now)
            self._reported = me.seen
        return False

    def _evaluate(self, node: Node, effect: Evaluate) -> bool:
        simulation, rank, share = self._simulation, node.me.rank, self._collectives.share(node)
        node.answer = node.replica.evaluate(effect.params, effect.buffers, *share)
        samples = sum(map(len, scoring_batches(simulation.shape.test_samples, *share)))
        return self._spend(node, EVALUATE, simulation.costs.evaluate(rank, samples))

    def _save(self, node: Node, _: Save) -> bool:
        return self._spend(node, CHECKPOINT, self._simulation.costs.times.checkpoint)

    def _export(self, node: Node, effect: Export) -> bool:
        if node.replica is not None and self._collectives.share(node)[0] == 0:
            self._simulation.recorder.exported(node.replica.export(effect.params, effect.buffers))
        return False

    def _spend(self, node: Node, kind: int, seconds: float) -> bool:
        node.ledger.span(kind, node.me.now, seconds)
        node.me.now += seconds
        return False


def simulate(simulation: Simulation) -> Summary:
    """Raises UsageError for what cannot be simulated, and RunFailed where a strategy gets stuck."""
    check(simulation.prepared, simulation.cluster, simulation.gradients, simulation.horizon)
    return execute(simulation)


@undisturbed(AllStreams())
def execute(simulation: Simulation, transport: Transport = SimulatedTransport) -> Summary:
    """Simulate what was checked before, or what is not the user's: a recorded run, or workers that stand for others."""
    return VirtualEngine(simulation, transport).run()

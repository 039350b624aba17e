"""A worker's whole run as one program: the strategy's own, and what happens at its sync points.

Both runtimes run this, so a run evaluates, saves and stops at the same points on real processes and in virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from paceline.errors import Diverged, RunFailed
from paceline.records.events import TEST_LOSS, MetricsRow
from paceline.runtimes.prepare import JobInfo, Prepared
from paceline.runtimes.settings import DueActions
from paceline.strategies.base import ENDS, MOST_EFFECTS, SyncPoint, Worker, wrong_effect
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    Clock,
    Gradient,
    Program,
    Receive,
    Send,
    StartAllReduce,
    Wait,
)

Ending = Literal["budget", "target", "interrupted", "left"]
ALWAYS_RIGHT = frozenset({AllReduce, Apply, Clock, Receive, Send, StartAllReduce, Wait})
"""Effects of which ``wrong_effect`` finds only too many."""
REDUCED = (
    "asks for the mean gradient of all workers, which several learners a worker do not have; yield Gradient()"
)
STARTED = (
    "asks for StartAllReduce, which only workers that all take the same number of steps can do; yield AllReduce, or "
    "synchronize at every step"
)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score these parameters and buffers on this worker's share of the test data.

    Answered with a vector of sums, laid out as ``MetricsRow.from_sums`` reads it, so that workers can add theirs up.
    """

    params: Tensor
    buffers: Tensor


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint of everything that this worker holds."""


@dataclass(frozen=True, slots=True)
class Export:
    """Keep the central model, for use after the run."""

    params: Tensor
    buffers: Tensor


@dataclass(slots=True)
class Position:
    """The run's progress, as every worker knows it at a sync point; saved in checkpoints."""

    progress: int = 0
    """Steps a worker; their mean where workers differ."""
    seen: int = 0
    """Samples that all workers together have trained on, as of the last reduction; kept where workers differ."""
    last_sync: int = 0
    """The progress at the last sync point at which something was due."""
    reached: float | None = None


@dataclass(slots=True, kw_only=True)
class Session:
    prepared: Prepared[JobInfo]
    me: Worker
    position: Position
    learning_rate: Callable[[float], float]
    report: Callable[[MetricsRow], None]
    noise_scale: Callable[[], float | None] = lambda: None
    stopping: Callable[[], bool] = lambda: False
    """Whether the workers have agreed to stop early; the same on all workers at a sync point."""
    agreed: bool = False
    """Whether workers of servers have voted to stop; they vote no more."""
    at_sync_point: bool = False
    """Whether the effect last asked for belongs to a sync point; its time is kept apart from the steps'."""

    def program(self) -> Program:
        """Train until the last step, the target or an agreed stop; return how it ended."""
        me, position = self.me, self.position
        sync_point = self.prepared.strategy.sync_point
        by_step, on_request = sync_point is SyncPoint.EVERY_STEP, sync_point is SyncPoint.ON_REQUEST
        if me.clock == 0 and not on_request:
            yield Broadcast(me.params)
            if me.buffers.numel():
                yield Broadcast(me.buffers)
        strategy = self.prepared.strategy.worker(me)
        answer, since_gradient = None, 0
        under_way = False
        """Whether a reduction was started and not waited for."""
        due_at = self.prepared.triggers.next(position.last_sync)
        while True:
            try:
                effect = strategy.send(answer)
            except StopIteration:
                raise self._wrong(ENDS) from None
            kind = type(effect)
            since_gradient += 1
            if kind is Gradient:
                since_gradient = 0
                if effect.reduce is not None and me.params.dim() > 1:
                    raise self._wrong(REDUCED)
                if by_step:
                    position.progress = me.clock
                elif on_request:
                    due_at = self._take_over(due_at)
                if position.progress >= due_at or self.stopping():
                    if under_way:  # no checkpoint has half of a reduction, and what it took is the step's
                        yield Wait()
                        under_way = False
                    self.at_sync_point = True
                    ending: Ending | None = yield from self._sync()
                    self.at_sync_point = False
                    if ending:
                        return ending
                    due_at = self.prepared.triggers.next(position.progress)
            elif kind is StartAllReduce and not by_step:
                raise self._wrong(STARTED)
            elif since_gradient > MOST_EFFECTS or kind not in ALWAYS_RIGHT:
                wrong = wrong_effect(effect, since_gradient, me.workers)
                if wrong:
                    raise self._wrong(wrong)
            if under_way and self._uses_links(effect):
                if kind is not Wait:  # collectives have the same order on all workers
                    yield Wait()
                under_way = False
            answer = yield effect
            if kind is StartAllReduce:
                under_way = True
            elif kind is AllReduce and not by_step and not on_request and _averages(effect, me):
                position.seen += round(me.total_weight)
                position.progress = self.prepared.shards.steps_through(position.seen)

    def _uses_links(self, effect: object) -> bool:
        """Whether an effect is a collective that all workers wait for, or begins with one."""
        if isinstance(effect, Gradient):
            shares_buffers = self.prepared.settings.buffers == "rank0" and self.me.buffers.numel() > 0
            return effect.reduce is not None or shares_buffers
        return type(effect) in (AllReduce, Broadcast, Wait)

    def _wrong(self, what: str) -> RunFailed:
        spec = self.prepared.settings.strategy
        return RunFailed(f"at step {self.me.clock} the worker's program of strategy {spec!r} {what}")

    def _take_over(self, due_at: int) -> int:
        """Take over the progress that the servers sent; return when something is due next, also for a late worker."""
        position = self.position
        self._count_seen()
        last_sync = self.prepared.shards.steps_through(self.me.seen_at_sync)
        if last_sync <= position.last_sync:
            return due_at
        position.last_sync = last_sync
        return self.prepared.triggers.next(last_sync)

    def _count_seen(self) -> None:
        self.position.seen = self.me.seen
        self.position.progress = self.prepared.shards.steps_through(self.me.seen)

    def _sync(self) -> Program:
        position, on_request = self.position, self.prepared.strategy.sync_point is SyncPoint.ON_REQUEST
        if on_request:  # workers arrive one by one, and only the servers know their progress
            params = yield from self.prepared.strategy.central(self.me)
            interrupted = yield from self._vote()
            self._count_seen()
        else:
            interrupted = self.stopping()
        due = self.prepared.triggers.due(position.last_sync, position.progress)
        if interrupted and not on_request:  # what is due here stays due, as in a run that is never stopped
            due = DueActions(evaluate=False, checkpoint=True, stop=False)
        else:
            position.last_sync = position.progress
        on_target = False
        if due.evaluate or due.stop:
            if not on_request:
                params = yield from self.prepared.strategy.central(self.me)
            on_target = yield from self._evaluate(due, params)
        if due.checkpoint or on_target or interrupted:
            yield Save()
        return "target" if on_target else "budget" if due.stop else "interrupted" if interrupted else None

    def _vote(self) -> Program:
        """Whether to stop here: without common steps workers learn of a stop one after the other."""
        votes = torch.tensor([float(self.stopping())])
        yield AllReduce(votes, op="sum")
        self.agreed = votes.item() > 0
        return self.agreed

    def central(self) -> Program:
        """The central model, parameters and buffers; all workers ask for it at the same point.

        None where they stop here instead: those of servers synchronize at no other points than these and a stop. After
        the stop it can be had, to save it.
        """
        on_request = self.prepared.strategy.sync_point is SyncPoint.ON_REQUEST
        if not on_request:
            yield Wait()
        params = yield from self.prepared.strategy.central(self.me)
        if on_request and not self.agreed and (yield from self._vote()):
            return None
        buffers = yield from self._central_buffers()
        return params, buffers

    def _evaluate(self, due: DueActions, params: Tensor) -> Program:
        """Evaluate the central model, and export it if this is the end; return whether the target is met."""
        buffers = yield from self._central_buffers()
        on_target = False
        if due.evaluate:
            sums = yield Evaluate(params, buffers)
            yield AllReduce(sums, op="sum")
            epoch = self.prepared.triggers.epoch(self.position.progress)
            row = MetricsRow.from_sums(
                sums.tolist(),
                self.prepared.job.metrics,
                step=self.position.progress,
                epoch=epoch,
                learning_rate=self.learning_rate(epoch),
                seconds=self.me.now,
                noise_scale=self.noise_scale(),
            )
            self.report(row)
            if not isfinite(sums[TEST_LOSS]):
                raise Diverged(f"the test loss is {row.test_loss}", row.step, row.learning_rate)
            target = self.prepared.settings.target_accuracy
            on_target = target is not None and row.metrics["accuracy"] >= target
            if on_target and self.position.reached is None:
                self.position.reached = self.me.now
        if due.stop or on_target:
            yield Export(params, buffers)
        return on_target

    def _central_buffers(self) -> Program:
        """The batch-norm statistics that go with the central model; each worker's own stay as they are.

        Of several learners it is their mean.
        """
        if not self.me.buffers.numel():
            return self.me.buffers
        own = self.me.buffers
        buffers = own.mean(0) if own.dim() > 1 else own.clone()
        if self.prepared.settings.buffers == "rank0":
            yield Broadcast(buffers)
        else:
            yield AllReduce(buffers, weight=self.prepared.shards.batch_size(self.me.rank))
        return buffers


def _averages(effect: AllReduce, me: Worker) -> bool:
    return effect.tensor is me.params or effect.offset is not None

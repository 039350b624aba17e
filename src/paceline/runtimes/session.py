"""A worker's whole life as one program: the strategy's own, and what happens where the workers meet.

Both runtimes run this, so a run evaluates, saves and stops at the same points on real processes and in virtual time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from paceline.errors import Diverged
from paceline.jobs.sharding import Shards
from paceline.records.events import TEST_LOSS, MetricsRow, Scores
from paceline.runtimes.agenda import Due, Triggers
from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import AllReduce, Broadcast, Gradient, Program

Ending = Literal["budget", "target", "interrupted", "left"]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score these parameters and buffers on this worker's share of the test data.

    Answered with a vector of sums, laid out as ``Scores.from_sums`` reads it, so that workers can add theirs up.
    """

    params: Tensor
    buffers: Tensor


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint of everything that this worker holds."""


@dataclass(frozen=True, slots=True)
class Export:
    """Keep the model that counts, for use after the run."""

    params: Tensor
    buffers: Tensor


@dataclass(slots=True)
class Position:
    """How far the run has come, as every worker knows it at a meeting; saved in checkpoints."""

    progress: int = 0
    """Steps a worker; their mean where workers differ."""
    seen: int = 0
    """Samples that all workers together have trained on, as of the last reduction; kept where workers differ."""
    met: int = 0
    """The progress at the last meeting that was due."""
    reached: float | None = None
    """Seconds into the run at which the target accuracy was first met."""


@dataclass(slots=True, kw_only=True)
class Session:
    """One worker's session: its strategy, its dates and who is told."""

    strategy: Strategy
    me: Worker
    agenda: Triggers
    shards: Shards
    position: Position
    metrics: Sequence[str]
    target: float | None
    buffers: Literal["average", "rank0"]
    """Whose batch-norm statistics go with the central model: the mean of all, or rank 0's."""
    learning_rate: Callable[[float], float]
    """The rate at an epoch, for the rows."""
    report: Callable[[MetricsRow], None]
    """Told of every evaluation."""
    stopping: Callable[[], bool]
    """Whether the workers have agreed to stop early; alike on all workers at a meeting."""
    meeting: bool = False
    """Whether the effect last asked for belongs to a meeting; its time is kept apart from the steps'."""

    def program(self) -> Program:
        """Train until the last date, the target or an agreed stop; return how it ended."""
        me, position = self.me, self.position
        by_step, apart = (
            self.strategy.sync_point is SyncPoint.EVERY_STEP,
            self.strategy.sync_point is SyncPoint.ON_REQUEST,
        )
        if me.clock == 0 and not apart:
            yield Broadcast(me.params)
            if me.buffers.numel():
                yield Broadcast(me.buffers)
        strategy = self.strategy.worker(me)
        effect = next(strategy)
        date = self.agenda.next(position.met)
        while True:
            kind = type(effect)
            if kind is Gradient:
                if by_step:
                    position.progress = me.clock
                elif apart:
                    date = self._hear(date)
                if position.progress >= date or self.stopping():
                    self.meeting = True
                    ending: Ending | None = yield from self._meet()
                    self.meeting = False
                    if ending:
                        return ending
                    date = self.agenda.next(position.progress)
            answer = yield effect
            if kind is AllReduce and effect.tensor is me.params and not by_step and not apart:
                position.seen += round(me.total_weight)
                position.progress = self.shards.steps_through(position.seen)
            effect = strategy.send(answer)

    def _hear(self, date: int) -> int:
        """Take over what the servers have told; return the next date, which a worker that came late does not know."""
        position = self.position
        position.seen = self.me.seen
        position.progress = self.shards.steps_through(position.seen)
        met = self.shards.steps_through(self.me.seen_at_sync)
        if met <= position.met:
            return date
        position.met = met
        return self.agenda.next(met)

    def _meet(self) -> Program:
        if self.strategy.sync_point is SyncPoint.ON_REQUEST:
            return (yield from self._meet_apart())
        due = self.agenda.due(self.position.met, self.position.progress)
        interrupted = self.stopping()
        if interrupted:
            # What is due here stays due: a run that resumes keeps the date, as one never stopped would.
            due = Due(evaluate=False, checkpoint=True, stop=True)
        else:
            self.position.met = self.position.progress
        on_target = False
        if due.evaluate or (due.stop and not interrupted):
            params = yield from self.strategy.central(self.me)
            on_target = yield from self._look(due, params)
        if due.checkpoint or on_target:
            yield Save()
        if interrupted:
            return "interrupted"
        return "target" if on_target else "budget" if due.stop else None

    def _meet_apart(self) -> Program:
        """As others meet, but the workers come one by one, and only the servers know how far they have come."""
        params = yield from self.strategy.central(self.me)
        interrupted = yield from self._anybody(self.stopping())
        position = self.position
        position.seen = self.me.seen
        position.progress = self.shards.steps_through(position.seen)
        due = self.agenda.due(position.met, position.progress)
        position.met = position.progress
        on_target = False
        if due.evaluate or due.stop:
            on_target = yield from self._look(due, params)
        if due.checkpoint or on_target or interrupted:
            yield Save()
        return "target" if on_target else "budget" if due.stop else "interrupted" if interrupted else None

    def _anybody(self, mine: bool) -> Program:
        """Whether any worker says so; workers that meet apart hear of a stop one after the other."""
        votes = torch.tensor([float(mine)])
        yield AllReduce(votes, op="sum")
        return votes.item() > 0

    def _look(self, due: Due, params: Tensor) -> Program:
        """Evaluate the model that counts, and export it if this is the end; return whether the target is met."""
        buffers = yield from self._central_buffers()
        on_target = False
        if due.evaluate:
            sums = yield Evaluate(params, buffers)
            yield AllReduce(sums, op="sum")
            row = self._row(Scores.from_sums(sums.tolist(), self.metrics))
            self.report(row)
            if not isfinite(sums[TEST_LOSS]):
                raise Diverged(f"the test loss is {row.scores.test_loss}", row.step, row.learning_rate)
            on_target = self.target is not None and row.scores.metrics["accuracy"] >= self.target
            if on_target and self.position.reached is None:
                self.position.reached = self.me.now
        if due.stop or on_target:
            yield Export(params, buffers)
        return on_target

    def _central_buffers(self) -> Program:
        """The batch-norm statistics that go with the central model; every worker's own stay as they are."""
        if not self.me.buffers.numel():
            return self.me.buffers
        buffers = self.me.buffers.clone()
        if self.buffers == "rank0":
            yield Broadcast(buffers)
        else:
            yield AllReduce(buffers, weight=self.shards.batch_size(self.me.rank))
        return buffers

    def _row(self, scores: Scores) -> MetricsRow:
        epoch = self.agenda.epoch(self.position.progress)
        return MetricsRow(
            step=self.position.progress,
            epoch=epoch,
            scores=scores,
            learning_rate=self.learning_rate(epoch),
            seconds=self.me.now,
        )

"""Carries a worker's program out on real processes: autograd, torch.distributed and the wall clock."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.collectives.traffic import broadcast_bytes
from paceline.jobs.step import StepHooks, StepPhase
from paceline.records.observer import Observer
from paceline.runtimes.live.heartbeat import Phase
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.overlap import Overlap
from paceline.runtimes.live.worker.recorder import Recorder
from paceline.runtimes.live.worker.slowness import Slowness
from paceline.runtimes.live.worker.stopping import Agreement
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Ending, Evaluate, Export, Save, Session
from paceline.strategies.base import SyncPoint, Worker
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    BucketedMean,
    Clock,
    Gradient,
    Peer,
    Receive,
    Send,
)
from paceline.strategies.messages import message_bytes

WEIGHT, VOTE = 0, 1
"""Which control element carries a worker's weight, and which its vote to stop."""


class Beating(Protocol):
    """Somebody who is told of every step, and what the worker is doing."""

    def beat(self, step: int) -> None:
        """A step has ended."""

    def enter(self, phase: Phase) -> None:
        """A phase begins, or has made progress."""


class Keeper(Protocol):
    """Who writes what a run leaves behind."""

    def save(self) -> None:
        """Write a checkpoint of this worker."""

    def commit(self, members: Sequence[int]) -> None:
        """These workers, all that there are, have written theirs: it counts, and older ones may go."""

    def export(self, params: Tensor, buffers: Tensor) -> None:
        """Write the model that counts."""


class _EngineHooks(StepHooks):
    """Times the phases of a step, reports liveness, and starts the reduction with the last backward."""

    def __init__(
        self, heartbeat: Beating, recorder: Recorder, slowness: Slowness, step: int, overlap: Overlap | None
    ) -> None:
        self._heartbeat, self._recorder, self._slowness = heartbeat, recorder, slowness
        self._step, self._overlap = step, overlap

    def begin(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._slowness.begin(self._step)
        self._heartbeat.enter(phase)

    def end(self, phase: StepPhase) -> None:
        if phase != "data":
            self._slowness.stretch()
        self._recorder.mark(phase)

    def last_backward(self) -> None:
        if self._overlap:
            self._overlap.begin()


class Engine:
    """Interprets one worker's effects and keeps ``me`` up to date."""

    def __init__(
        self,
        *,
        me: Worker,
        replica: Replica,
        group: Group,
        recorder: Recorder,
        keeper: Keeper,
        observer: Observer,
        heartbeat: Beating,
        agreement: Agreement,
        leaving: Callable[[], bool] = lambda: False,
        slowness: Slowness | None = None,
        share_buffers: bool = False,
    ) -> None:
        """``share_buffers`` makes everybody's buffers rank 0's before each forward, as torch's DDP does."""
        self.me, self.replica, self.group, self.recorder = me, replica, group, recorder
        self.keeper, self.observer, self.heartbeat = keeper, observer, heartbeat
        self._agreement, self._leaving = agreement, leaving
        self._slowness = slowness or Slowness()
        self._share_buffers = share_buffers and not group.alone and me.buffers.numel() > 0
        self._overlaps: dict[BucketedMean, Overlap] = {}
        self._loss = 0.0
        self._seen = me.seen
        self._do: dict[type, Callable[[Any], object]] = {
            Gradient: self._first_gradient,
            Apply: self._apply,
            Clock: self._clock,
            Send: self._send,
            Receive: self._receive,
            AllReduce: self._all_reduce,
            Broadcast: self._broadcast,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }

    def run(self, session: Session) -> Ending:
        """Carry the session out to its end."""
        self._session = session
        program, answer, in_meeting = session.program(), None, False
        while True:
            self.heartbeat.enter("exchange")  # whatever follows waits for others, unless it says otherwise
            try:
                effect = program.send(answer)
            except StopIteration as end:
                self._write_down()
                self.recorder.close(self.me.clock)
                ending: Ending = end.value
                return ending
            if session.meeting and not in_meeting:
                self._write_down()
            in_meeting = session.meeting
            if type(effect) is Gradient and self._leaving():
                self._write_down()
                return "left"
            answer = self._do[type(effect)](effect)
            self.me.now = self.recorder.now

    def stopping(self) -> bool:
        """Whether all workers have agreed to stop."""
        return self._agreement.reached(self.me.clock)

    def _write_down(self) -> None:
        """Bring all records so far to the disk; all workers are at the same point."""
        self.recorder.close(self.me.clock)
        self.recorder.settle()

    def _first_gradient(self, effect: Gradient) -> None:
        """What came before the first step is settled at once: the next exchange may be far."""
        self._write_down()
        self._do[Gradient] = self._gradient
        self._gradient(effect)

    def _gradient(self, effect: Gradient) -> None:
        me, replica, recorder = self.me, self.replica, self.recorder
        recorder.close(me.clock)
        recorder.pace(self._session.position.progress)
        if self._share_buffers:
            self._broadcast(Broadcast(me.buffers))
        me.samples = replica.shards.size(me.rank, me.clock)
        share = me.samples / replica.shards.total(me.clock) if effect.reduce else 1.0
        overlap = self._overlap(effect.reduce)
        hooks = _EngineHooks(self.heartbeat, recorder, self._slowness, me.clock, overlap)
        loss = replica.gradient(me.clock, share, hooks)
        self._loss = loss if me.samples else self._loss
        self.heartbeat.enter("exchange")
        if overlap:
            self._reduce_gradient(overlap)
        elif effect.reduce:
            me.total_weight = me.samples
        me.samples_since_sync += me.samples
        recorder.count(me.samples)

    def _overlap(self, mean: BucketedMean | None) -> Overlap | None:
        if mean is None or self.group.alone:
            return None
        if mean not in self._overlaps:
            self._overlaps[mean] = Overlap(self.replica.flat, mean, self.group, self._slowness)
        return self._overlaps[mean]

    def _reduce_gradient(self, overlap: Overlap) -> None:
        storage = self.replica.flat.grad_storage
        self._fill_control(storage, self.me.samples)
        for start, end in overlap.finish():
            self.recorder.hide(start, end)
        self._read_control(storage)
        self.recorder.exchanged(overlap.sent, overlap.received)

    def _fill_control(self, storage: Tensor, weight: float) -> None:
        storage[WEIGHT] = weight
        storage[VOTE] = self._agreement.vote()

    def _read_control(self, storage: Tensor) -> None:
        self.me.total_weight, votes = storage[: VOTE + 1].tolist()
        if votes:
            self._agreement.count(votes)

    def _apply(self, effect: Apply) -> None:
        me, position = self.me, self._session.position
        self.heartbeat.enter("apply")
        self.replica.apply(self._session.agenda.epoch(position.progress), effect.rate)
        me.clock += 1
        self.recorder.mark("apply")
        by_step = self._session.strategy.sync_point is SyncPoint.EVERY_STEP
        progress = me.clock if by_step else position.progress
        self._stepped(progress, self.replica.shards.total(me.clock - 1))

    def _clock(self, _: Clock) -> None:
        """The servers have told how many samples all workers have trained on since this one's last step."""
        me = self.me
        me.clock += 1
        samples, self._seen = me.seen - self._seen, me.seen
        self._stepped(self.replica.shards.steps_through(me.seen), samples)

    def _stepped(self, progress: int, samples: int) -> None:
        self.heartbeat.beat(self.me.clock)
        self.observer.stepped(progress, samples, self._loss, self.recorder.now)

    def _send(self, effect: Send) -> None:
        self.group.send(effect.to.rank, effect.message)
        self.recorder.moved(message_bytes(effect.message), 0)

    def _receive(self, _: Receive) -> tuple[Peer, Any]:
        server, message = self.group.receive()
        self.recorder.answered(getattr(message, "held", 0.0))
        self.recorder.moved(0, message_bytes(message))
        return Peer("server", server), message

    @torch.no_grad()
    def _all_reduce(self, effect: AllReduce) -> None:
        me, tensor = self.me, effect.tensor
        if self.group.alone:
            me.total_weight = effect.weight
        elif effect.op == "sum":
            self._sum(tensor)
        elif tensor is me.params or tensor is me.grad:
            flat = self.replica.flat
            storage = flat.params_storage if tensor is me.params else flat.grad_storage
            tensor.mul_(effect.weight)
            self._fill_control(storage, effect.weight)
            self._sum(storage)
            self._read_control(storage)
            tensor.div_(me.total_weight)
        else:
            message = torch.cat((tensor.new_full((1,), effect.weight), tensor.reshape(-1) * effect.weight))
            self._sum(message)
            me.total_weight = message[0].item()
            tensor.copy_(message[1:].view_as(tensor) / me.total_weight)
        if tensor is me.params:
            me.samples_since_sync = 0

    def _sum(self, tensor: Tensor) -> None:
        there = tensor.to(self.replica.device)
        self.group.sum(there)
        if there is not tensor:
            tensor.copy_(there)
        self.recorder.exchanged(*self.group.traffic(there))

    def _broadcast(self, effect: Broadcast) -> None:
        if self.group.alone or not effect.tensor.numel():
            return
        self.group.broadcast(effect.tensor, effect.root)
        sent, received = broadcast_bytes(
            effect.tensor.nbytes, self.group.workers, self.group.rank, effect.root
        )
        self.recorder.exchanged(sent, received)

    def _evaluate(self, effect: Evaluate) -> Tensor:
        beat = partial(self.heartbeat.enter, "evaluate")
        beat()
        sums = self.replica.evaluate(effect.params, effect.buffers, *self.group.seat, beat)
        self.recorder.mark("evaluate")
        return sums

    def _save(self, _: Save) -> None:
        if self.recorder.pending:  # what is saved here is recorded up to here, whatever happens next
            self._write_down()
        self.heartbeat.enter("checkpoint")
        self.keeper.save()
        self.recorder.mark("checkpoint")
        if not self.group.alone:
            self.heartbeat.enter("exchange")
            self.group.minimum(torch.zeros(1))  # when it returns, all have written theirs
            self.recorder.mark("wait")
            self.heartbeat.enter("checkpoint")
        self.keeper.commit(self.group.members)
        self.recorder.mark("checkpoint")

    def _export(self, effect: Export) -> None:
        self.heartbeat.enter("checkpoint")
        self.keeper.export(effect.params, effect.buffers)
        self.recorder.mark("checkpoint")

"""One worker's run: its replica, its records and checkpoints, and the loop that carries its program's effects out."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from sys import maxsize
from typing import Any

import torch
from torch import Tensor

from paceline.collectives.traffic import broadcast_bytes
from paceline.jobs.job import Job
from paceline.records.checkpoints import Checkpoints
from paceline.records.events import EventWriter
from paceline.records.load import SystemSampler
from paceline.records.spans import TimeLedger
from paceline.records.summary import Observer, Summary
from paceline.records.tensors import write_tensors
from paceline.runtimes.config import already_complete
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.overlap import Overlap, PhaseHooks, Slowdown
from paceline.runtimes.live.worker.recorder import DriftCheck, StepRecorder
from paceline.runtimes.live.worker.reporter import RunReporter
from paceline.runtimes.live.worker.run_folder import HeldFolder, load_shared, recorded_time, restore, snapshot
from paceline.runtimes.live.worker.stopping import StopByVote
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import Replica, stream_seed
from paceline.runtimes.session import Ending, Evaluate, Export, Position, Save, Session
from paceline.strategies import effects
from paceline.strategies.base import SyncPoint, Worker
from paceline.strategies.messages import message_bytes

WEIGHT, VOTE = 0, 1


class WorkerRun:
    """Call ``restore`` where the run resumes, then ``open``, and ``train`` once the communicator is connected."""

    recorder: StepRecorder

    def __init__(
        self,
        prepared: Prepared[Job],
        comm: SoloComm,
        device: torch.device,
        observer: Observer,
        heartbeat: Heartbeat,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """``leaving`` says whether this worker alone is to leave before its next step."""
        self.prepared, self.comm, self.heartbeat = prepared, comm, heartbeat
        self.reporter = RunReporter(observer, comm, prepared)
        settings = prepared.settings
        self.replica = Replica(prepared.job, prepared.shards, comm.rank, settings.seed, device, comm.zeros)
        self.replica.streams.set(self.replica.rng)
        seed_device(device, settings.seed, comm.rank)
        flat = self.replica.flat
        self.me = Worker(comm.rank, comm.workers, flat.params, flat.grad, self.replica.buffers)
        self.me.servers = prepared.servers
        self.position = Position()
        self.begun = 0.0
        self.resumed_step: int | None = None
        self._has_checkpoint = True
        self._leaving = leaving
        self._slowdown = Slowdown(settings.slow.get(comm.rank, 1.0), comm.rank, settings.slow_turns)
        self._share_buffers = settings.buffers == "rank0" and not comm.alone and self.me.buffers.numel() > 0
        self._overlap = cache(partial(Overlap, self.replica.flat, comm, self._slowdown))
        self._loss, self._seen = 0.0, 0
        self._do: dict[type, Callable[[Any], object]] = {
            effects.Gradient: self._gradient,
            effects.Apply: self._apply,
            effects.Clock: self._clock,
            effects.Send: self._send,
            effects.Receive: self._receive,
            effects.AllReduce: self._all_reduce,
            effects.Broadcast: self._broadcast,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }

    def restore(self, checkpoints: Checkpoints) -> None:
        settings, last = self.prepared.settings, self.prepared.triggers.last
        step, tree = load_shared(checkpoints, self.comm, self.prepared, self.reporter.noted)
        self.resumed_step, self._has_checkpoint = step, tree is not None
        if tree is not None:
            self.position = restore(tree, self.replica, self.me, settings.target_accuracy)
        else:
            self.position.progress = self.position.last_sync = step
        if self.position.last_sync >= last:
            raise already_complete(checkpoints.folder, last, step)

    def open(self, held: HeldFolder, begun: float | None = None) -> None:
        """``begun`` is given by a worker that joins: no other worker waits for it, and it continues no records."""
        self.held, self.ledger = held, TimeLedger()
        self.heartbeat.show(held.folder.path)
        if begun is not None:
            self.begun = begun
            return
        rank = self.comm.rank
        clock = self.me.clock if self._has_checkpoint else maxsize
        damaged = held.truncate(rank, clock, self.position.progress)
        self.ledger, end, last_step = recorded_time(held.folder, rank)
        others = self.comm.exchange({"begun": max(self.me.now, end), "damaged": damaged})
        for sentence in (sentence for other in others for sentence in other["damaged"]):
            self.reporter.noted(sentence)
        self.begun = max(other["begun"] for other in others)
        if not self._has_checkpoint:  # no step is recorded twice, and no mini-batch drawn again
            self.me.clock = last_step

    def train(
        self,
        stop: StopByVote,
        before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None,
        sampler: SystemSampler | None = None,
        *,
        start_together: bool = True,
    ) -> Summary:
        """``before_hard_end`` is called with what writes the records so far."""
        with ExitStack() as stack:
            if sampler:
                stack.enter_context(sampler)
            events = stack.enter_context(EventWriter(self.held.folder.events(self.comm.rank)))
            before_hard_end(events.flush)
            self.reporter.started(self.held, self.me.params.numel(), self.position.progress, self.begun)
            self._stop = stop
            self.me.now = self.begun
            if start_together:
                self.comm.barrier()
            ending = self._run(events)
        summary = self.reporter.finished(ending, self.held, self.me, self.position, self.ledger, sampler)
        self.comm.finish(self.me.clock, "left" if ending == "left" else "finished")
        return summary

    def _run(self, events: EventWriter) -> Ending:
        # Workers of servers share no exchange whose lengths they could compare.
        compared = SoloComm() if self.prepared.servers else self.comm
        same = self.prepared.strategy.replicated and not self.comm.alone
        drift = DriftCheck(self.comm, self.me) if same else None
        self.recorder = StepRecorder(compared, events.append, self.ledger, self.begun, events.flush, drift)
        session = Session(
            run=self.prepared,
            me=self.me,
            position=self.position,
            learning_rate=self.replica.learning_rate,
            report=lambda row: self.reporter.evaluated(row, self.held),
            stopping=lambda: self._stop.reached(self.me.clock),
        )
        try:
            ending = self._carry_out(session)
            self.me.now = self.recorder.now
        except BaseException:
            self.recorder.give_up(self.me.clock)
            raise
        finally:
            self.replica.close()
        return ending

    def _carry_out(self, session: Session) -> Ending:
        program, answer, at_sync_point, trained = session.program(), None, False, False
        self._seen = self.me.seen
        while True:
            self.heartbeat.enter("exchange")  # whatever follows waits for others, unless it says otherwise
            try:
                effect = program.send(answer)
            except StopIteration as end:
                self._write_records()
                self.recorder.close(self.me.clock)
                ending: Ending = end.value
                return ending
            if session.at_sync_point and not at_sync_point:
                self._write_records()
            at_sync_point = session.at_sync_point
            if type(effect) is effects.Gradient:
                leaving = self._leaving()
                if leaving or not trained:  # before the first step: the next exchange may be far
                    self._write_records()
                if leaving:
                    return "left"
                trained = True
            answer = self._do[type(effect)](effect)
            self.me.now = self.recorder.now

    def _write_records(self) -> None:
        self.recorder.close(self.me.clock)
        self.recorder.settle()

    def _gradient(self, effect: effects.Gradient) -> None:
        me, replica, recorder = self.me, self.replica, self.recorder
        recorder.close(me.clock)
        recorder.pace(self.position.progress)
        if self._share_buffers:
            self._broadcast(effects.Broadcast(me.buffers))
        me.samples = replica.shards.size(me.rank, me.clock)
        share = me.samples / replica.shards.total(me.clock) if effect.reduce else 1.0
        overlap = self._overlap(effect.reduce) if effect.reduce and not self.comm.alone else None
        hooks = PhaseHooks(self.heartbeat, recorder, self._slowdown, me.clock, overlap)
        loss = replica.gradient(me.clock, share, hooks)
        self._loss = loss if me.samples else self._loss
        self.heartbeat.enter("exchange")
        if overlap:
            storage = replica.flat.grad_storage
            self._fill_control(storage, me.samples)
            for start, end in overlap.finish():
                recorder.hide(start, end)
            self._read_control(storage)
            recorder.exchanged(overlap.sent, overlap.received)
        elif effect.reduce:
            me.total_weight = me.samples
        me.samples_since_sync += me.samples
        recorder.count(me.samples)

    def _fill_control(self, storage: Tensor, weight: float) -> None:
        storage[WEIGHT] = weight
        storage[VOTE] = self._stop.vote()

    def _read_control(self, storage: Tensor) -> None:
        self.me.total_weight, votes = storage[: VOTE + 1].tolist()
        self._stop.count(votes)

    def _apply(self, effect: effects.Apply) -> None:
        me = self.me
        self.heartbeat.enter("apply")
        self.replica.apply(self.prepared.triggers.epoch(self.position.progress), effect.rate)
        me.clock += 1
        self.recorder.mark("apply")
        by_step = self.prepared.strategy.sync_point is SyncPoint.EVERY_STEP
        progress = me.clock if by_step else self.position.progress
        self._stepped(progress, self.replica.shards.total(me.clock - 1))

    def _clock(self, _: effects.Clock) -> None:
        me = self.me
        me.clock += 1
        samples, self._seen = me.seen - self._seen, me.seen
        self._stepped(self.replica.shards.steps_through(me.seen), samples)

    def _stepped(self, progress: int, samples: int) -> None:
        self.heartbeat.beat(self.me.clock)
        self.reporter.stepped(progress, samples, self._loss, self.recorder.now)

    def _send(self, effect: effects.Send) -> None:
        self.comm.send(effect.to.rank, effect.message)
        self.recorder.moved(message_bytes(effect.message), 0)

    def _receive(self, _: effects.Receive) -> tuple[effects.Peer, Any]:
        envelope = self.comm.receive()
        self.recorder.answered(getattr(envelope.message, "held", 0.0))
        self.recorder.moved(0, message_bytes(envelope.message))
        return envelope.sender, envelope.message

    @torch.no_grad()
    def _all_reduce(self, effect: effects.AllReduce) -> None:
        me, tensor = self.me, effect.tensor
        if self.comm.alone:
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
        self.comm.sum(there)
        if there is not tensor:
            tensor.copy_(there)
        self.recorder.exchanged(*self.comm.traffic(there))

    def _broadcast(self, effect: effects.Broadcast) -> None:
        comm, tensor = self.comm, effect.tensor
        if comm.alone or not tensor.numel():
            return
        comm.broadcast(tensor, effect.root)
        self.recorder.exchanged(*broadcast_bytes(tensor.nbytes, comm.workers, comm.rank, effect.root))

    def _evaluate(self, effect: Evaluate) -> Tensor:
        alive = partial(self.heartbeat.enter, "evaluate")
        alive()
        members = self.comm.members
        place = members.index(self.comm.rank)
        sums = self.replica.evaluate(effect.params, effect.buffers, place, len(members), alive)
        self.recorder.mark("evaluate")
        return sums

    def _save(self, _: Save) -> None:
        if self.recorder.pending:  # what is saved here is recorded up to here, whatever happens next
            self._write_records()
        self.heartbeat.enter("checkpoint")
        self._write_checkpoint()
        self.recorder.mark("checkpoint")
        if not self.comm.alone:
            self.heartbeat.enter("exchange")
            self.comm.barrier()  # when it returns, all have written theirs
            self.recorder.mark("wait")
        self.comm.save_shards(self.position.progress)
        self.heartbeat.enter("checkpoint")
        self.held.commit(self.position.progress, self.me.rank, self.comm.members)
        self.recorder.mark("checkpoint")

    def _write_checkpoint(self) -> None:
        """Named by the progress that all workers share; one that is of no use is not written."""
        self.held.lock.check()
        if not self.me.params.isfinite().all():
            what = f"parameters of rank {self.me.rank} are not finite after an update"
            raise self.replica.diverged(what, self.me.clock)
        tree = snapshot(self.replica, self.me, self.position, self.prepared.settings.target_accuracy)
        try:
            self.held.checkpoints.save(self.position.progress, self.me.rank, tree)
        except FileNotFoundError:
            self.held.lock.check()
            raise

    def _export(self, effect: Export) -> None:
        self.heartbeat.enter("checkpoint")
        if self.reporter.is_first:
            self.held.lock.check()
            write_tensors(self.held.folder.model, self.replica.export(effect.params, effect.buffers))
        self.recorder.mark("checkpoint")


def seed_device(device: torch.device, seed: int, rank: int) -> None:
    if device.type == "cuda":
        torch.cuda.manual_seed(stream_seed(seed, rank))

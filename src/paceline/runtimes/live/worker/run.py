"""One worker's run: its replica, its records and checkpoints, and the loop that carries its program's effects out."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from paceline.codecs.reduction import NotFinite
from paceline.jobs.job import Job
from paceline.jobs.step import StepHooks, StepPhase
from paceline.records.checkpoints import Checkpoints
from paceline.records.events import EventWriter
from paceline.records.load import SystemSampler
from paceline.records.summary import Observer, Probe, Summary
from paceline.records.tensors import write_tensors
from paceline.runtimes.compression import Compressor, layout_of
from paceline.runtimes.config import already_complete
from paceline.runtimes.flat import SQUARES
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.overlap import CompressedOverlap, Overlap, Slowdown
from paceline.runtimes.live.worker.probe import NotMeasured, measure
from paceline.runtimes.live.worker.profiling import ProfiledSteps, StepProfiler
from paceline.runtimes.live.worker.recorder import StepRecorder
from paceline.runtimes.live.worker.records import RunRecords, load_shared
from paceline.runtimes.live.worker.reductions import Reductions
from paceline.runtimes.live.worker.stopping import StopByVote
from paceline.runtimes.prepare import Prepared, short_codec
from paceline.runtimes.replica import Replica, stream_seed
from paceline.runtimes.served_compression import worker_messages
from paceline.runtimes.session import Ending, Evaluate, Export, Position, Save, Session
from paceline.strategies import effects
from paceline.strategies.base import SyncPoint, Worker
from paceline.strategies.messages import message_bytes

_NUMBERS = ("clock", "now", "samples", "samples_since_sync", "total_weight")

Computation = effects.Gradient | effects.Apply
"""What a worker computes; all else that a program asks for is communication or bookkeeping."""


class WorkerRun(StepHooks):
    """Call ``restore`` where the run resumes, open the ``records``, then ``train``."""

    recorder: StepRecorder

    def __init__(
        self,
        prepared: Prepared[Job],
        comm: SoloComm,
        replica: Replica,
        observer: Observer,
        heartbeat: Heartbeat,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """``leaving`` says whether this worker alone is to leave before its next step."""
        self.prepared, self.comm, self.heartbeat, self.replica = prepared, comm, heartbeat, replica
        settings, flat = prepared.settings, replica.flat
        self.me = Worker(comm.rank, comm.workers, flat.params, flat.grad, self.replica.buffers)
        self.me.servers, self.me.clients = prepared.servers, prepared.clients
        layout = layout_of(replica.model)
        self.messages = worker_messages(prepared, self.me, layout)
        self.position, self.records = Position(), RunRecords(prepared, comm, observer, self.me)
        self._leaving = leaving
        self._slowdown = Slowdown(settings.slow.get(comm.rank, 1.0), comm.rank, settings.slow_turns)
        self._share_buffers = settings.buffers == "rank0" and not comm.alone and self.me.buffers.numel() > 0
        self._compressor: Compressor | None = None
        overlap: Callable[[effects.BucketedMean], Overlap] = partial(Overlap, flat, comm, self._slowdown)
        if prepared.compresses and not comm.alone and not prepared.servers:
            self._compressor = Compressor(
                prepared.codec, self.me, layout, settings.seed, replicated=prepared.strategy.replicated
            )
            overlap = partial(CompressedOverlap, flat, comm, self._slowdown, self._compressor)
        self._overlap_of = cache(overlap)
        self._overlap: Overlap | None = None
        self._share, self._measured = 1.0, False
        self._reducing: effects.Gradient = effects.Gradient()
        self._loss, self._seen = float("nan"), 0
        self._started = 0.0
        """What the host's clock read when its ranks began; 0 where workers do not start together."""
        self._profiler: StepProfiler | None = None

    def profile(self, steps: ProfiledSteps) -> None:
        """Have the torch profiler on in these steps; call it when the records are open."""
        file = self.records.folder.profile(self.comm.rank)
        self._profiler = StepProfiler(steps, file, self.replica.device)

    def restore(self, checkpoints: Checkpoints) -> bool:
        """Go on from a checkpoint that all have; False: a worker of servers has none of its own of that step."""
        settings, last, me = self.prepared.settings, self.prepared.triggers.last, self.me
        step, tree = load_shared(checkpoints, self.comm, self.prepared, self.records.noted)
        if tree is None:
            self.position.progress = self.position.last_sync = step
        else:
            self.replica.load(tree["replica"])
            if tree["gpu_rng"] is not None:
                torch.cuda.set_rng_state(tree["gpu_rng"], self.replica.device)
            device = self.replica.device
            me.state.update({name: tensor.to(device) for name, tensor in tree["state"].items()})
            for name in _NUMBERS:
                setattr(me, name, tree["worker"][name])
            self.position = Position(**tree["position"])
            if tree["target"] != settings.target_accuracy:
                self.position.reached = None
        if self.position.last_sync >= last:
            raise already_complete(checkpoints.folder, last, step)
        return tree is not None

    def _snapshot(self) -> dict[str, Any]:
        replica, me = self.replica, self.me
        on_gpu = replica.device.type == "cuda"
        return {
            "replica": replica.state(),
            "gpu_rng": torch.cuda.get_rng_state(replica.device) if on_gpu else None,
            "state": dict(me.state),
            "worker": {name: getattr(me, name) for name in _NUMBERS},
            "position": asdict(self.position),
            "target": self.prepared.settings.target_accuracy,
        }

    def train(
        self,
        stop: StopByVote,
        before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None,
        sampler: SystemSampler | None = None,
        *,
        start_together: bool = True,
    ) -> Summary:
        """``before_hard_end`` is called with what writes the records so far."""
        with self.recording(before_hard_end, sampler, start_together=start_together) as events:
            ending = self._run(events, stop)
        return self.conclude(ending, sampler)

    @contextmanager
    def recording(
        self,
        before_hard_end: Callable[[Callable[[], None]], None],
        sampler: SystemSampler | None,
        *,
        start_together: bool = True,
    ) -> Iterator[EventWriter]:
        """The time of the run: its events are written, and those who follow it know that it has begun."""
        self._begun = self.me.clock
        with ExitStack() as stack:
            if sampler:
                stack.enter_context(sampler)
            events = stack.enter_context(EventWriter(self.records.folder.events(self.comm.rank)))
            before_hard_end(events.flush)
            probe = self._probe() if start_together else None
            self.records.started(self.position.progress, self.replica.base_rate, probe)
            if start_together:
                self._agree_on_start()
                self.comm.barrier()
            yield events

    def _agree_on_start(self) -> None:
        """Ranks of a host read the same clock: it counts from the same moment, or spans of one would be drawn apart."""
        told = self.comm.exchange([self.comm.rank, perf_counter()])
        _, self._started = min((rank, moment) for rank, moment in told if rank in self.records.local)

    def conclude(self, ending: Ending, sampler: SystemSampler | None) -> Summary:
        """Add up what all workers recorded, when nothing more is."""
        if self._compressor and not self._compressor.used:
            settings = self.prepared.settings
            self.records.noted(
                f"codec {short_codec(settings.codec)} was not used: strategy {settings.strategy} has reduced "
                "neither gradients nor parameters"
            )
        coding = None
        if self._compressor and self.me.clock > self._begun:
            coding = self.comm.coding_seconds / (self.me.clock - self._begun)
        profiled = str(self._profiler.steps) if self._profiler and self._profiler.written else ""
        noise = self.replica.noise.summary()
        summary = self.records.finished(ending, self.position, sampler, coding, noise, profiled)
        self.comm.finish(self.me.clock, "left" if ending == "left" else "finished")
        return summary

    def _probe(self) -> Probe | None:
        """What a prediction needs to know of a run with a codec."""
        if not self.prepared.compresses or self.comm.alone:
            return None
        nodes = tuple(worker["node"] for worker in self.records.workers)
        clock, slowdown = self.me.clock, self._slowdown
        try:
            return measure(self.prepared, self.replica, self.comm, clock, slowdown, self.heartbeat, nodes)
        except NotMeasured as error:
            self.records.noted(f"what to expect of a step cannot be said: {error}")
            return None

    def begin_session(self, events: EventWriter, stop: StopByVote) -> Session:
        """Make what carries the program out; the worker's session is where it begins."""
        # Workers of servers share no exchange whose lengths they could compare.
        compared = SoloComm() if self.prepared.servers else self.comm
        replica = self.me if self.prepared.strategy.replicated else None
        passed = perf_counter() - self._started if self._started else 0.0
        self.recorder = StepRecorder(compared, events, self.records.ledger, self.me.now + passed, replica)
        self._reductions = Reductions(self.me, self.replica, self.comm, self._compressor, self.recorder, stop)
        self._handlers: dict[type, Callable[[Any], object]] = {
            effects.Clock: self._clock,
            effects.Send: self._send,
            effects.Receive: self._receive,
            effects.AllReduce: self._reductions.all_reduce,
            effects.StartAllReduce: self._reductions.start,
            effects.Wait: self._wait,
            effects.Broadcast: self._reductions.broadcast,
            Evaluate: self._evaluate,
            Save: self._save,
            Export: self._export,
        }
        return Session(
            prepared=self.prepared,
            me=self.me,
            position=self.position,
            learning_rate=self.replica.learning_rate,
            noise_scale=lambda: self.replica.noise.value,
            report=self.records.evaluated,
            stopping=lambda: stop.reached(self.me.clock),
        )

    def _run(self, events: EventWriter, stop: StopByVote) -> Ending:
        computations = self.computations(self.begin_session(events, stop))
        try:
            while True:
                try:
                    effect = next(computations)
                except StopIteration as end:
                    ending: Ending = end.value
                    break
                if isinstance(effect, effects.Gradient):
                    self._compute_gradient(effect)
                else:
                    self._apply(effect)
            self.me.now = self.recorder.now
        except BaseException:
            self.recorder.give_up(self.me.clock)
            raise
        finally:
            self.replica.close()
            if self._profiler:
                self._profiler.close()
        return ending

    def computations(self, session: Session) -> "Generator[Computation, None, Ending]":
        """Carry the program out, and leave what is computed, gradients and the optimizer's steps, to the caller.

        It is resumed when the caller has computed what it asks for: in a loop of ours, or in a user's own.
        """
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
            training = type(effect) is effects.Gradient
            if self._profiler and (training or session.at_sync_point):
                self._profile_if_due(self._profiler, training=training)
            if session.at_sync_point and not at_sync_point:
                self._write_records()
            at_sync_point = session.at_sync_point
            if training:
                leaving = self._leaving()
                if leaving or not trained:  # before the first step: the next exchange may be far
                    self._write_records()
                if leaving:
                    return "left"
                trained = True
            try:
                if training:
                    self._begin_gradient(effect)
                    yield effect
                    self._count_gradient()
                    answer = None
                elif type(effect) is effects.Apply:
                    self.heartbeat.enter("apply")
                    yield effect
                    self._count_step()
                    answer = None
                else:
                    answer = self._handlers[type(effect)](effect)
            except NotFinite as error:
                raise self.replica.not_finite(error, self.me, effect) from error
            self.me.now = self.recorder.now

    def carry_out(self, program: effects.Program) -> Any:
        """Carry out a program that computes nothing, and return what it does."""
        answer = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._handlers[type(effect)](effect)

    def _profile_if_due(self, profiler: StepProfiler, *, training: bool) -> None:
        """Turn the profiler on or off; what that takes belongs to no step."""
        if not profiler.wants_to_switch(self.me.clock, training=training):
            return
        self.recorder.close(self.me.clock)
        self.heartbeat.enter("checkpoint")
        profiler.switch()
        self.recorder.mark("other")
        by_step = self.prepared.strategy.sync_point is SyncPoint.EVERY_STEP
        if by_step and not self._reductions.under_way:
            self._write_records()  # in which all wait for each other, so that the next step waits for no trace
        else:
            self.recorder.close(self.me.clock)

    def _write_records(self) -> None:
        self.recorder.close(self.me.clock)
        self._reductions.wait()  # before workers compare their records: collectives have one order
        self.recorder.settle()

    def _wait(self, _: effects.Wait) -> None:
        """Nothing is under way then, on any worker, so that records may be compared."""
        self._reductions.wait()
        self.recorder.pace(self.position.progress)

    def _begin_gradient(self, effect: effects.Gradient) -> None:
        me, replica, recorder = self.me, self.replica, self.recorder
        recorder.close(me.clock)
        if self._reductions.under_way:
            self._reductions.raise_failure()
        else:
            recorder.pace(self.position.progress)
        if self._share_buffers:
            self._reductions.broadcast(effects.Broadcast(me.buffers))
        me.samples = replica.samples(me.clock, effect.batch)
        self._reducing = effect
        self._overlap = self._overlap_of(effect.reduce) if effect.reduce and not self.comm.alone else None
        self._share = replica.share(me.clock) if effect.reduce else 1.0
        # Encoded, the mean is not what the workers' own gradients add up to.
        self._measured = self._overlap is not None and not self._compressor and replica.noise.due(me.clock)

    def _compute_gradient(self, effect: effects.Gradient) -> None:
        loss = self.replica.gradient(self.me.clock, self._share, self, effect.batch)
        self._loss = loss if self.me.samples else self._loss
        self.reduce_gradient()

    def reduce_gradient(self) -> None:
        """Make the gradient that backward has left what the program asked for: the mean, if it is to be reduced."""
        me = self.me
        self.heartbeat.enter("exchange")
        if self._overlap:
            try:
                self._reductions.finish(self._overlap)
            except NotFinite as error:
                raise self.replica.not_finite(error, me, self._reducing) from error
            if self._measured:
                squares = self.replica.flat.grad_storage[SQUARES].item()
                self.replica.noise.compare_workers(squares, me.grad)
        elif self._reducing.reduce:
            me.total_weight = me.samples

    def _count_gradient(self) -> None:
        me = self.me
        me.samples_since_sync += me.samples
        self.recorder.count(me.samples)

    def begin(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._slowdown.begin(self.me.clock)
        self.heartbeat.enter(phase)
        if self._profiler:
            self._profiler.begin(phase)

    def end(self, phase: StepPhase) -> None:
        if phase != "data":
            self._slowdown.stretch()
        self.recorder.mark(phase)
        if self._profiler:
            self._profiler.end()

    def last_backward(self) -> None:
        if self._overlap:
            self._overlap.begin(self._share, measured=self._measured)

    def _apply(self, effect: effects.Apply) -> None:
        epoch = self.prepared.triggers.epoch(self.position.progress)
        self.me.rate_factor = self.replica.apply(epoch, effect.rate, fresh=effect.fresh)

    def _count_step(self) -> None:
        me = self.me
        me.clock += 1
        self.recorder.mark("apply")
        by_step = self.prepared.strategy.sync_point is SyncPoint.EVERY_STEP
        progress = me.clock if by_step else self.position.progress
        clients = me.clients.sizes  # where there are some, the others' mini-batches are not known here
        self._stepped(progress, me.samples * me.workers if clients else self.replica.total(me.clock - 1))

    def _clock(self, _: effects.Clock) -> None:
        me = self.me
        me.clock += 1
        samples, self._seen = me.seen - self._seen, me.seen
        self._stepped(self.replica.shards.steps_through(me.seen), samples)

    def _stepped(self, progress: int, samples: int) -> None:
        self.heartbeat.beat(self.me.clock)
        self.records.stepped(progress, samples, self._loss, self.recorder.now)

    def _send(self, effect: effects.Send) -> None:
        server = effect.to.rank
        message = self.messages.encoded(server, effect.message)
        self.comm.send(server, message)
        self.recorder.moved(message_bytes(message), 0)

    def _receive(self, _: effects.Receive) -> tuple[effects.Peer, Any]:
        envelope = self.comm.receive()
        message = self.messages.decoded(envelope.sender.rank, envelope.message)
        self.recorder.answered(getattr(message, "held", 0.0))
        self.recorder.moved(0, message_bytes(envelope.message))
        return envelope.sender, message

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
        self.records.commit(self.position.progress)
        self.recorder.mark("checkpoint")

    def _write_checkpoint(self) -> None:
        """Named by the progress that all workers share; one that is of no use is not written."""
        self.records.lock.check()
        if not self.me.params.isfinite().all():
            what = f"parameters of rank {self.me.rank} are not finite after an update"
            raise self.replica.diverged(what, self.me.clock)
        try:
            self.records.checkpoints.save(self.position.progress, self.me.rank, self._snapshot())
        except FileNotFoundError:
            self.records.lock.check()
            raise

    def _export(self, effect: Export) -> None:
        self.heartbeat.enter("checkpoint")
        if self.records.is_first:
            self.records.lock.check()
            write_tensors(self.records.folder.model, self.replica.export(effect.params, effect.buffers))
        self.recorder.mark("checkpoint")


def replica_of(prepared: Prepared[Job], comm: SoloComm, device: torch.device) -> Replica:
    """The replica of a job; the process's random streams become those of this worker."""
    seed, plan = prepared.settings.seed, prepared.strategy.learner_plan
    replica = Replica(
        prepared.job, prepared.shards, comm.rank, seed, device, comm.zeros, plan, prepared.clients
    )
    replica.streams.set(replica.rng)
    seed_device(device, seed, comm.rank)
    return replica


def seed_device(device: torch.device, seed: int, rank: int) -> None:
    if device.type == "cuda":
        torch.cuda.manual_seed(stream_seed(seed, rank))

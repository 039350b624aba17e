"""What torch calls while a script trains: forward, backward and the optimizer's step drive the worker's program.

The program waits where it asks for a gradient. Backward fills it, and when backward has ended it is averaged, if the
program asked for that. ``optimizer.step()`` resumes the program: up to its Apply before the optimizer's own step, and
up to its next gradient after it.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from paceline.errors import RunFailed, UsageError, say_on_stderr
from paceline.loop.phases import LoopPhases
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica, LoopRun, prepare_script
from paceline.loop.served import MODEL, ServedOptimizer, describe
from paceline.records.events import EventWriter
from paceline.records.files import to_document
from paceline.records.load import SystemSampler
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.worker.comm import SoloComm, join_group
from paceline.runtimes.live.worker.run import Computation
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.live.worker.start import agree_to_stop, sample_system
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.session import Ending, Position, Session
from paceline.runtimes.settings import Settings
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import Apply, Gradient

NUMBERS = ("clock", "samples_since_sync", "total_weight")
"""Of a worker, that its state has beside the strategy's own."""


class LoopSteps(LoopPhases):
    """The steps of one worker. The run begins with the first mini-batch: only then are the batch sizes known."""

    run: LoopRun | None = None
    _session: Session
    _computations: Generator[Computation, None, Ending]
    _recording: AbstractContextManager[EventWriter]
    _sampler: SystemSampler | None = None

    def __init__(
        self, process: ScriptProcess, settings: Settings, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self._process, self.settings = process, settings
        if next(model.parameters()).is_cuda:  # as the script has it
            process.options = replace(process.options, device="cuda")
        self._observer = process.observe(settings)
        served = check_settings(settings).served
        self.comm: SoloComm = self._join_servers() if served else self._join_group()
        check_equal(self.comm.exchange({"strategy": settings.strategy, "codec": settings.codec}))
        self.replica = LoopReplica(model, optimizer, self.comm.rank, self.comm.workers, self.comm.zeros)
        self._served: ServedOptimizer | None = None
        if isinstance(self.comm, ServerComm):
            self._served = ServedOptimizer(self.replica, self.comm, process.info.servers)
        else:
            self._share(self.replica.flat.params, self.replica.buffers)
        self.seed: int = self.comm.exchange(process.seed)[0]
        self.loaded: dict[str, Any] = {}
        self._stack = ExitStack()
        self._ending: Ending = "budget"
        self._syncs = True
        self._in_backward = self._complete = False
        self._registered = self.register(model, optimizer)

    def _join_group(self) -> SoloComm:
        return join_group(self._process.info, self._process.options, note=self._observer.noted)

    def _join_servers(self) -> ServerComm:
        info, timeout = self._process.info, timedelta(seconds=self._process.options.timeout)
        return ServerComm(info.rank, info.workers, MemberStore(info, timeout))

    def _share(self, *vectors: Tensor) -> None:
        """Give all workers what rank 0 has."""
        for vector in vectors:
            if vector.numel():
                self.comm.broadcast(vector, 0)

    def register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle]:
        accumulated = [
            one.register_post_accumulate_grad_hook(partial(self._accumulated, index))  # type: ignore[no-untyped-call]
            for index, one in enumerate(self.replica.flat.parameters)
        ]
        return [*super().register(model, optimizer), *accumulated]

    def synchronize(self, on: bool) -> None:
        """Whether backward averages gradients, from here on."""
        self._syncs = on
        if self.run:
            (self.run.arm if on else self.run.disarm)()

    def central(self) -> tuple[Tensor, Tensor]:
        """The parameters and buffers of the central model; all workers ask at the same step."""
        found = self._central()
        if found is None:
            raise KeyboardInterrupt
        return found

    def _central(self) -> tuple[Tensor, Tensor] | None:
        """None where all workers stop here: those of servers learn of a stop when they synchronize."""
        assert self.run is not None
        self.run.heartbeat.enter("exchange")
        found: tuple[Tensor, Tensor] | None = self.run.carry_out(self._session.central())
        self.run.heartbeat.enter("starting")
        if found is None:
            self._ending = "interrupted"
        return found

    def evaluated(self) -> None:
        """What was done since the last step was an evaluation, and belongs to none."""
        if self.run and self.phase == "data":
            self.run.recorder.mark("evaluate")
            self.run.recorder.close(self.run.me.clock)

    @property
    def agrees(self) -> bool:
        return self.run is not None

    @property
    def stopped(self) -> bool:
        return self._ending == "interrupted"

    def finish(self) -> Ending:
        """The script has ended: add up what all workers did."""
        if self.comm.gone:
            say_on_stderr(
                "the script has destroyed its process group before the run was added up, so that its record has no "
                "summary; call worker.close() first"
            )
            self.abandon()
            return self._ending
        self._remove_hooks()
        run = self.run
        with self._stack:
            if run is not None:
                if self._served and not self.stopped:  # the others may have steps to take
                    self._central()
                self._process.heartbeat.enter("finishing")
                self._computations.close()
                run.settle()
                self._recording.__exit__(None, None, None)
                run.conclude(self._ending, self._sampler)
        self.comm.close()
        self._observer.close()
        return self._ending

    def abandon(self) -> None:
        """The script has failed: keep what was recorded, and let the other workers notice at once."""
        self._remove_hooks()
        if self.run is not None:
            self.run.recorder.give_up(self.run.me.clock)
            self._recording.__exit__(None, None, None)
        self.comm.close(failed=True)
        self._stack.close()
        self._observer.close()

    def _remove_hooks(self) -> None:
        for hook in self._registered:
            hook.remove()

    def _open(self, rows: int) -> LoopRun:
        """All workers have their first mini-batch: the run begins, and its program asks for the first gradient."""
        process, replica = self._process, self.replica
        sizes = tuple(self.comm.exchange(max(1, rows)))
        settings = process.settings(self.settings.strategy, self.settings.codec, sizes)
        if isinstance(self.comm, ServerComm) and self.comm.rank == 0:
            self.comm.post(MODEL, to_document(describe(replica, settings.codec, sizes)))
        prepared = prepare_script(settings, check_settings(settings), replica.model, replica.users_optimizer)
        replica.prepare(prepared.job, prepared.shards)
        run = LoopRun(prepared, self.comm, replica, self._observer, process.heartbeat)
        task = process.task(settings)
        self._stack.enter_context(run.records.hold(task, None))
        process.heartbeat.show(run.records.folder.path)
        run.records.open(0, restored=True)
        self._load(run)
        self._sampler = (
            sample_system(run.records, task, self._observer) if process.info.local_rank == 0 else None
        )
        stop = agree_to_stop(run, task)
        if self._served:
            self._served.begin()
            self._share(replica.buffers)
        self._recording = run.recording(task.before_hard_end, self._sampler)
        self._session = run.begin_session(self._recording.__enter__(), stop)
        self._computations = run.computations(self._session)
        self.run = run
        self._resume(Gradient)
        self.synchronize(self._syncs)
        return run

    def _load(self, run: LoopRun) -> None:
        if not self.loaded:
            return
        for name in NUMBERS:
            setattr(run.me, name, self.loaded["numbers"][name])
        run.me.state.update({name: one.to(self.replica.device) for name, one in self.loaded["state"].items()})
        run.position = Position(**self.loaded["position"])

    def _resume(self, expected: type[Computation]) -> None:
        """Let the program go on to what it computes next; where all workers have agreed to stop, stop the script."""
        try:
            effect = next(self._computations)
        except StopIteration as end:
            self._ending = end.value or self._ending  # None again, where the script does not stop
            raise KeyboardInterrupt from None
        if type(effect) is not expected:
            raise RunFailed(
                f"strategy {self.settings.strategy!r} asks for {type(effect).__name__} where a script's loop has "
                f"{expected.__name__}; let it yield Gradient() and Apply() in turn"
            )

    def _take_batch(self, samples: int) -> None:
        if self.run is None:
            self.hooks = self._open(samples)
        self.replica.rows += samples

    @torch.no_grad()
    def _accumulated(self, index: int, parameter: Tensor) -> None:
        """Move a gradient that autograd has put elsewhere into the flat vector."""
        if self.run is None:
            raise UsageError(
                "a gradient of the model was computed without a call of the model: call model(...) itself, and not "
                "one of its parts or methods"
            )
        if not self._in_backward:
            self._in_backward = True
            self._backward_begins(parameter)
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        grad, view = parameter.grad, self.replica.grads[index]
        if grad is not view and grad is not None:
            self._check_skipped()
            view.copy_(grad)
            parameter.grad = view

    def _check_skipped(self) -> None:
        """A complete gradient was thrown away without a step, as a GradScaler does with one that is not finite.

        Where gradients are averaged all workers do so alike.
        """
        run = self.run
        if self._complete and run and not run.reduces and self.comm.workers > 1:
            point = run.prepared.strategy.sync_point
            if point is SyncPoint.EVERY_STEP:
                raise UsageError(
                    f"rank {self.comm.rank} has skipped a step after step {run.me.clock}, and with strategy "
                    f"{self.settings.strategy!r} all workers must take the same number of steps; step whenever "
                    "gradients are zeroed (with a GradScaler, use bfloat16 without one), or choose all-reduce"
                )

    @torch.no_grad()
    def _backward_ended(self) -> None:
        run = self.run
        assert run is not None
        self._in_backward = False
        self._end_backward()
        if not self._syncs:
            return
        if run.reduces or self._served:  # another worker may have a gradient of what this one has not used
            for parameter, view in zip(self.replica.flat.parameters, self.replica.grads, strict=True):
                if parameter.grad is None:
                    view.zero_()
                    parameter.grad = view
        run.reduce_gradient()
        run.arm()
        run.heartbeat.enter("starting")
        self._complete = True

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if args[1:] or kwargs.get("closure") is not None:  # the first one is the optimizer
            raise UsageError(
                f"{type(optimizer).__name__}.step(closure) computes gradients by itself; call backward, then step()"
            )
        if any(one.requires_grad for one in self.replica.frozen):
            raise UsageError(
                "a parameter that was frozen when distribute() was called is trained now; call distribute() when it "
                "is not frozen, and freeze it afterwards"
            )
        if self.run is None or not self._complete:
            raise UsageError(
                "optimizer.step() without a gradient of the whole step: the last backward of a step must be outside "
                "of worker.no_sync(), after a call of the model"
            )
        self._complete = False
        if self._served:
            self._served.begin_step()
            self.run.recorder.mark("apply")  # as clipping is, where workers step themselves
            self._resume(Gradient)
            self._served.hide_gradients()
            return
        for one in self.replica.flat.parameters:
            if not one.requires_grad:
                one.grad = None
        self._resume(Apply)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._served:
            self._served.show_gradients()
        else:
            self._resume(Gradient)
        self.phase = "data"
        self._process.heartbeat.enter("starting")  # whatever the script does next takes as long as it takes

"""What torch calls while a script trains: forward, backward and the optimizer's step drive the worker's program.

The program waits where it asks for a gradient. Backward fills it, and when backward has ended it is averaged, if the
program asked for that. ``optimizer.step()`` resumes the program: up to its Apply before the optimizer's own step, and
up to its next gradient after it.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from paceline.codecs import build_codec
from paceline.errors import RunFailed, UsageError, say_on_stderr
from paceline.loop.barrier import LoopBarrier
from paceline.loop.first_batch import FirstBatch, find_equal
from paceline.loop.learners import RowBlocks
from paceline.loop.phases import LoopPhases, first_tensor, in_backward, rows_of
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica, LoopRun, prepare_script
from paceline.loop.saved import begin_at
from paceline.loop.served import MODEL, ServedOptimizer, describe
from paceline.loop.uneven import UnevenLoops
from paceline.records.events import EventWriter
from paceline.records.files import to_document
from paceline.records.load import SystemSampler
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.worker.comm import ProcessGroupComm, SoloComm, join_group
from paceline.runtimes.live.worker.run import Computation
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.live.worker.start import agree_to_stop, sample_system
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.replica import check_momentum_of
from paceline.runtimes.session import Ending, Session
from paceline.runtimes.settings import Settings
from paceline.strategies.effects import Apply, Gradient, Program, Wait

TOGETHER = "all workers must get there after equally many steps"
EVENLY = (
    "all workers must take equally many steps: divide the data by worker.shard(loader), or put the loop in 'with "
    "worker.join():'"
)


class LoopSteps(LoopPhases):
    """The steps of one worker. The run begins with the first mini-batch: only then are the batch sizes known."""

    run: LoopRun | None = None
    _session: Session
    _computations: Generator[Computation, None, Ending]
    _recording: AbstractContextManager[EventWriter]
    _sampler: SystemSampler | None = None
    _barrier: LoopBarrier | None = None
    _uneven: UnevenLoops | None = None
    """Inside of ``join``."""

    def __init__(
        self, process: ScriptProcess, settings: Settings, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self._process, self.settings = process, settings
        if any(one.is_cuda for one in model.parameters()):  # as the script has it
            process.options = replace(process.options, device="cuda")
        if build_codec(settings.codec).has_momentum:
            check_momentum_of(optimizer, settings.codec, "", "SGD with momentum=0")
        self._observer = process.observe(settings)
        served = check_settings(settings).served
        self.comm: SoloComm = self._join_servers() if served else self._join_group()
        check_equal(self.comm.exchange({"strategy": settings.strategy, "codec": settings.codec}))
        learners = check_settings(settings).learner_plan.count or 1
        self.replica = LoopReplica(
            model, optimizer, self.comm.rank, self.comm.workers, self.comm.zeros, learners
        )
        self._blocks = RowBlocks(self.replica.learners)
        self._served: ServedOptimizer | None = None
        if isinstance(self.comm, ServerComm):
            self._served = ServedOptimizer(self.replica, self.comm, process.info.servers)
        told = self.comm.exchange([process.seed, *self.replica.elements])
        self.seed: int = told[0][0]
        _check_same_model([elements for _, *elements in told])
        if not self._served:
            self._share(self.replica.flat.params)
            self.replica.share_untrained(self._share)
        self.loaded: dict[str, Any] = {}
        self._stack = ExitStack()
        self._ending: Ending = "budget"
        self._syncs = True
        self._in_backward = self._filled = self._complete = self._following = False
        self._versions: list[int] = []
        """How often the gradients had been written to when they were complete."""
        self._registered = self.register(model, optimizer)

    def _join_group(self) -> SoloComm:
        return join_group(self._process.info, self._process.options, note=self._observer.noted)

    def _join_servers(self) -> ServerComm:
        info, timeout = self._process.info, timedelta(seconds=self._process.options.timeout)
        return ServerComm(info.rank, info.workers, MemberStore(info, timeout))

    def _share(self, vector: Tensor) -> None:
        """Give all workers what rank 0 has."""
        if vector.numel():
            self.comm.broadcast(vector, 0)

    def register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle]:
        accumulated = [
            one.register_post_accumulate_grad_hook(partial(self._accumulated, view))  # type: ignore[no-untyped-call]
            for parameters, views in zip(self.replica.parameters, self.replica.grads, strict=True)
            for one, view in zip(parameters, views, strict=True)
        ]
        forward = model.register_forward_hook(self._as_hook(self._forward_ends))
        return [*super().register(model, optimizer), forward, *accumulated]

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
        if self._uneven:
            raise UsageError(
                "central_model() inside of join(), where workers whose loops have ended do not come; use it after "
                "join()"
            )
        self._take_skipped()
        self._meet("central_model()", TOGETHER)
        self.run.heartbeat.enter("exchange")
        found: tuple[Tensor, Tensor] | None = self.run.carry_out(self._session.central())
        self.run.heartbeat.enter("starting")
        if found is None:
            self._ending = "interrupted"
        return found

    def wait(self) -> None:
        """Have the result of every reduction that was started: no state has half of one."""
        if self.run:
            self.run.carry_out(_waited())

    def evaluated(self) -> None:
        """What was done since the last step was an evaluation, and belongs to none."""
        if self.run and self.phase == "data":
            self.run.recorder.mark("evaluate")
            self.run.recorder.close(self.run.me.clock)

    def begin_join(self) -> None:
        if self._uneven:
            raise UsageError(
                "join() inside of join(): workers wait for each other at the end of the outer one"
            )
        if not self.comm.alone and not self._served:  # servers wait for nobody who has ended
            self._uneven = UnevenLoops(self)

    def end_join(self, *, failed: bool) -> None:
        """This worker's loop has ended: follow the others until theirs have, unless an exception ended it."""
        uneven = self._uneven
        if uneven and not failed:
            if self.run is None:  # without a mini-batch
                self._open(FirstBatch())
            self._take_skipped()
            run, replica = self.run, self.replica
            assert run is not None
            self._following = replica.follows = True
            run.me.samples = 0
            try:
                uneven.follow_others()
            finally:
                self._following, replica.follows, self._uneven = False, False, None
            replica.training = self.comm.workers
            run.arm()
            run.recorder.close(run.me.clock)
            self.phase = "data"
            self._process.heartbeat.enter("starting")
        self._uneven = None

    def _meet(self, where: str, together: str) -> None:
        """Wait for all workers to be at this point of their scripts."""
        assert self.run is not None
        self.run.heartbeat.enter("exchange")
        if self._barrier:
            self._barrier.wait(where, together)

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
        try:
            if self.run is None and not self.comm.alone:
                self._open(FirstBatch(ended=True))
            if self.run is not None:
                self._end(self.run)
        except BaseException:
            self.abandon()
            raise
        self._remove_hooks()
        with closing(self._observer), self.comm, self._stack:
            if self.run is not None:
                self._recording.__exit__(None, None, None)
                self.run.conclude(self._ending, self._sampler)
        return self._ending

    def _end(self, run: LoopRun) -> None:
        """The last that all workers do together."""
        if not self.stopped:
            self._take_skipped()
        self._meet("the end of its script", EVENLY)
        self._remove_hooks()
        if self._served and not self.stopped:  # the others may have steps to take
            self._central()
        self._process.heartbeat.enter("finishing")
        if self._barrier:
            self._barrier.close()
        self._computations.close()
        run.settle()

    def abandon(self) -> None:
        """The script has failed: keep what was recorded, and let the other workers notice at once."""
        self._remove_hooks()
        if self._barrier:
            self._barrier.close()
        if self.run is not None:
            self.run.recorder.give_up(self.run.me.clock)
            self._recording.__exit__(None, None, None)
        self.comm.close(failed=True)
        self._stack.close()
        self._observer.close()

    def _remove_hooks(self) -> None:
        """The script may go on: from here on its backwards and steps are its own."""
        for hook in self._registered:
            hook.remove()
        if self.run:
            self.run.disarm()

    def _open(self, batch: FirstBatch) -> None:
        """All workers have their first mini-batch: the run begins, and its program asks for the first gradient.

        Workers whose scripts end without one begin it too; where all do, there is no run.
        """
        process, replica = self._process, self.replica
        batches = [FirstBatch(**one) for one in self.comm.exchange(asdict(batch))]
        if all(one.ended for one in batches):
            return
        sizes = tuple(max(1, one.samples // len(replica.learners)) for one in batches)
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
        begin_at(self.loaded, run)
        if equal := find_equal(batches):
            run.records.noted(
                f"ranks {equal[0]} and {equal[1]} begin with the same mini-batch: divide the data by "
                "worker.shard(loader), or each of them computes what another one does"
            )
        self._sampler = (
            sample_system(run.records, task, self._observer) if process.info.local_rank == 0 else None
        )
        stop = agree_to_stop(run, task)
        if self._served:
            self._served.begin()
            replica.share_untrained(self._share)
        self._recording = run.recording(task.before_hard_end, self._sampler)
        self._session = run.begin_session(self._recording.__enter__(), stop)
        self._computations = run.computations(self._session)
        self.run = run
        if isinstance(self.comm, ProcessGroupComm):
            self._barrier = LoopBarrier(self.comm.open_store(), run, process.options.timeout)
        self._resume(Gradient)

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
        if expected is Gradient:
            self.synchronize(self._syncs)

    def _forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        if not _trains(model):
            return None
        self._take_batch(args, kwargs)
        if self.phase == "data":
            assert self.run is not None
            self.run.end("data")
            self.run.begin("forward")
            self.phase = "forward"
        return None if len(self.replica.learners) == 1 else self._blocks.cut(args, kwargs)

    def _take_batch(self, args: Any, kwargs: Any) -> None:
        self._take_skipped()
        if self.run is None:
            self._open(FirstBatch.of(first_tensor(args, kwargs)))
        if not self.replica.rows:
            self.replica.forget_with_first()
        self.replica.rows += rows_of(args, kwargs)
        self.replica.called = True

    def _forward_ends(self, model: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        if not _trains(model):
            if not in_backward():
                self.evaluated()
            return None
        joined = output if len(self.replica.learners) == 1 else self._blocks.join(output)
        for one in tree_leaves(joined):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]
        return None if joined is output else joined

    def _take_skipped(self) -> None:
        """A complete gradient was thrown away without a step, as a GradScaler does with one that is not finite.

        Where gradients are averaged, all workers do so alike and the next gradient takes its place, and so it does with
        servers, which count no steps. Workers that train apart count it as a step, in which the optimizer does nothing.
        """
        run = self.run
        if not (self._complete and run) or run.reduces or self._served:
            return
        if self.replica.is_zeroed(self._versions):
            run.end("data")
            self.take_step(compute=False)

    def take_step(self, *, compute: bool = True) -> None:
        """Let the program go through one step, with or without the optimizer's."""
        self._complete = False
        if self._uneven and not self._following:
            self._uneven.before_step()
        self._resume(Apply)
        if compute:
            self.replica.users_optimizer.step()
        self._resume(Gradient)

    def _backward_begins(self, _: Tensor) -> None:
        run = self.run
        if self._in_backward or run is None:
            return
        self._in_backward, self._filled = True, False
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        run.end("forward" if self.phase == "forward" else "data")
        run.begin("backward")

    @torch.no_grad()
    def _accumulated(self, view: Tensor, parameter: Tensor) -> None:
        """Move a gradient that autograd has put elsewhere into the flat vector."""
        run = self.run
        if run is None or not self.replica.called:
            raise UsageError(
                "a gradient of the model was computed without a call of the model that trains it in this step: call "
                "model(...) itself, after model.train(), and not one of its parts or methods, and not in "
                "checkpoint(..., use_reentrant=True)"
            )
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise UsageError(
                f"the gradient of {self.replica.name_of(parameter)} is sparse, and a worker's gradients are one dense "
                "vector; leave sparse=True out"
            )
        self._backward_begins(parameter)
        if not self._filled:
            self._filled = True
            if self._uneven and self._syncs and run.reduces:
                run.end("backward")
                self._uneven.before_reduction()
                run.begin("backward")
                run.arm()
        grad = parameter.grad
        if grad is not view and grad is not None:
            view.copy_(grad)
            parameter.grad = view

    @torch.no_grad()
    def _backward_ended(self) -> None:
        run = self.run
        assert run is not None
        self._in_backward = False
        run.end("backward")
        self.phase = "data"
        if not self._filled:  # torch.autograd.grad: what it has found belongs to a loss that is still to come
            run.begin("forward")
            self.phase = "forward"
            return
        if not self._syncs:
            return
        if run.reduces or self._served:  # another worker may have a gradient of what this one has not used
            for parameter, view in zip(self.replica.flat.parameters, self.replica.grads[0], strict=True):
                if parameter.grad is None:
                    view.zero_()
                    parameter.grad = view
        run.reduce_gradient()
        run.arm()
        run.heartbeat.enter("starting")
        self._complete, self._versions = True, self.replica.versions

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._following:
            return
        closures = (*args[1:], kwargs.get("closure"))  # the first one is the optimizer
        if any(one is not None for one in closures):
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
        self.replica.check_changed_alike(self._versions)
        self._complete = False
        if self._served:
            self._served.begin_step()
            self.run.recorder.mark("apply")  # as clipping is, where workers step themselves
            self._resume(Gradient)
            self._served.hide_gradients()
            return
        for parameters in self.replica.parameters:
            for one in parameters:
                if not one.requires_grad:
                    one.grad = None
        if self._uneven:
            self._uneven.before_step()
        self._resume(Apply)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._following:
            return
        if self._served:
            self._served.show_gradients()
        else:
            self._resume(Gradient)
        self.phase = "data"
        self._process.heartbeat.enter("starting")  # whatever the script does next takes as long as it takes


def _check_same_model(elements: list[list[int]]) -> None:
    for rank, own in enumerate(elements):
        if own != elements[0]:
            raise UsageError(
                f"the model has {_elements(elements[0])} on rank 0 and {_elements(own)} on rank {rank}, and all "
                "workers train the same; make it alike on all ranks"
            )


def _elements(counts: list[int]) -> str:
    trained, buffers, others = counts
    return f"{trained:,} trained elements and {buffers + others:,} others"


def _waited() -> Program:
    yield Wait()


def _trains(model: nn.Module) -> bool:
    """Whether a call of the model is for a gradient, and not one that checkpointing repeats in backward."""
    return model.training and torch.is_grad_enabled() and not in_backward()

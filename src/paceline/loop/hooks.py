"""What torch calls while a script trains: forward, backward and the optimizer's step drive the worker's program.

The program waits where it asks for a gradient. Backward fills it, and when backward has ended it is averaged, if the
program asked for that. ``optimizer.step()`` resumes the program: up to its Apply before the optimizer's own step, and
up to its next gradient after it.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from paceline.errors import RunFailed, UsageError
from paceline.jobs.step import StepPhase
from paceline.loop.ddp import active_ddp, refuse_ddp
from paceline.loop.learners import RowBlocks
from paceline.loop.mini_batch import FirstBatch, first_tensor, rows_of
from paceline.loop.other_optimizer import OtherOptimizer
from paceline.loop.replica import LoopReplica, LoopRun
from paceline.loop.served import ServedOptimizer
from paceline.loop.torch_hooks import in_backward, never_compiled
from paceline.loop.uneven import UnevenLoops
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker.run import Computation
from paceline.runtimes.session import Ending
from paceline.strategies.effects import Apply, Gradient


class LoopHooks:
    """The hooks of one worker's model and optimizer, until ``remove``; the first mini-batch opens its run."""

    phase: StepPhase = "data"
    """Data is what lies before a forward."""
    run: LoopRun | None = None
    """Since ``begin``."""
    _computations: Generator[Computation, None, Ending]
    uneven: UnevenLoops | None = None
    """Inside of ``join``."""

    def __init__(
        self,
        replica: LoopReplica,
        served: ServedOptimizer | None,
        heartbeat: Heartbeat,
        open_run: Callable[[FirstBatch], None],
    ) -> None:
        """``open_run`` is called with the first mini-batch, and calls ``begin``."""
        self.replica, self._served, self._heartbeat, self._open_run = replica, served, heartbeat, open_run
        self._blocks = RowBlocks(replica.learners)
        self.ending: Ending = "budget"
        self._syncs = True
        self._in_backward = self._filled = self._complete = self._following = self._removed = False
        self._versions: list[int] = []
        """How often the gradients had been written to when they were complete."""
        self._other = OtherOptimizer(replica)
        self._registered = [*self._register(replica.model, replica.users_optimizer), *self._other.register()]

    def _register(self, model: nn.Module, optimizer: Optimizer) -> list[RemovableHandle]:
        accumulated = [
            one.register_post_accumulate_grad_hook(partial(self._accumulated, view))  # type: ignore[no-untyped-call]
            for parameters, views in zip(self.replica.parameters, self.replica.grads, strict=True)
            for one, view in zip(parameters, views, strict=True)
        ]
        return [
            model.register_forward_pre_hook(never_compiled(self._forward_begins), with_kwargs=True),
            model.register_forward_hook(never_compiled(self._forward_ends)),
            optimizer.register_step_pre_hook(never_compiled(self._step_begins)),
            optimizer.register_step_post_hook(never_compiled(self._step_ends)),
            *accumulated,
        ]

    def remove(self) -> None:
        """The script may go on: from here on its backwards and steps are its own."""
        for hook in self._registered:
            hook.remove()
        self._removed = True
        if self.run:
            self.run.remove_hooks()

    def begin(self, run: LoopRun, computations: Generator[Computation, None, Ending]) -> None:
        """The run's program asks for its first gradient."""
        self.run, self._computations = run, computations
        self._resume(Gradient)

    def end(self) -> None:
        """The program is resumed no more."""
        self._computations.close()

    def follow_others(self, uneven: UnevenLoops) -> None:
        """This worker's loop has ended: do as the others do until theirs have."""
        self.take_skipped()
        run, replica = self.run, self.replica
        assert run is not None
        self._following = replica.follows = True
        run.me.samples = 0
        try:
            uneven.follow_others()
        finally:
            self._following = replica.follows = False
        replica.training = run.workers
        run.arm()
        run.recorder.close(run.me.clock)
        self.phase = "data"
        self._heartbeat.enter("script")

    def synchronize(self, on: bool) -> bool:
        """Whether backward averages gradients, from here on; returns whether it did."""
        before, self._syncs = self._syncs, on
        if self.run and not self._removed:
            (self.run.arm if on else self.run.disarm)()
        return before

    def evaluated(self) -> None:
        """What was done since the last step was an evaluation, and belongs to none."""
        if self.run and self.phase == "data" and not self.replica.rows:
            self.run.recorder.mark("evaluate")
            self.run.recorder.close(self.run.me.clock)

    def _resume(self, expected: type[Computation]) -> None:
        """Let the program go on to what it computes next; where all workers have agreed to stop, stop the script."""
        self.replica.reattach()
        assert self.run is not None
        self.run.waits = expected is Apply  # if it exchanges anything here, it does so in the next step
        try:
            effect = next(self._computations)
        except StopIteration as end:
            self.ending = end.value or self.ending  # None again, where the script does not stop
            raise KeyboardInterrupt from None
        finally:
            self.run.waits = False
        if type(effect) is not expected:
            spec = self.run.prepared.settings.strategy
            raise RunFailed(
                f"strategy {spec!r} asks for {type(effect).__name__} where a script's loop has {expected.__name__}; "
                "let it yield Gradient() and Apply() in turn"
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
        if self._in_backward and self.run:  # an exception has ended it, which the script has caught
            self._begin_again(self.run)
        self.take_skipped()
        if not self.replica.rows:
            self.replica.reattach()
        if self.run is None:
            refuse_ddp(active_ddp(), self.replica.model)  # one that was made after distribute()
            self._open_run(FirstBatch.of(first_tensor(args, kwargs)))
        if not self.replica.rows:
            self.replica.forget_with_first()
            self._blocks.follow(self.replica.model)
        self.replica.rows += rows_of(args, kwargs)
        self.replica.called = True

    def _begin_again(self, run: LoopRun) -> None:
        """After a backward that has failed."""
        if run.sum_has_begun:
            raise RunFailed(
                "a backward has failed when some of its gradients were on their way already, and the other workers "
                "wait for the rest; repeat only the forward, or end the script and have it start again"
            )
        self._in_backward = False
        self.synchronize(self._syncs)

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

    def take_skipped(self) -> None:
        """A complete gradient was thrown away without a step, as a GradScaler does with one that is not finite.

        Where gradients are averaged, all workers do so alike and the next gradient takes its place, and so it does with
        servers, which count no steps. Workers that train apart count it as a step, in which the optimizer does nothing.
        """
        run = self.run
        if not (self._complete and run):
            return
        self._other.check()
        if run.reduces or self._served:
            return
        if self.replica.is_zeroed(self._versions):
            run.end("data")
            self.take_step(compute=False)

    def take_step(self, *, compute: bool = True) -> None:
        """Let the program go through one step, with or without the optimizer's."""
        self._complete = False
        if self.uneven and not self._following:
            self.uneven.before_step()
        self._resume(Apply)
        if compute:
            self.replica.users_optimizer.step()
        self._resume(Gradient)

    def _backward_begins(self, _: Tensor) -> None:
        run = self.run
        if self._in_backward or run is None:
            return
        self._in_backward, self._filled = True, False
        self.replica.forget_with_first()  # what the script has zeroed since its forward
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
            if self.uneven and self._syncs and run.reduces:
                run.end("backward")
                self.uneven.before_reduction()
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
        run.heartbeat.enter("script")
        self._complete, self._versions = True, self.replica.versions
        self._other.forget()

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
            self.replica.take_gradients()
            self._served.begin_step()
            self.run.recorder.mark("apply")  # as clipping is, where workers step themselves
            self._resume(Gradient)
            self._served.hide_gradients()
            return
        for parameters in self.replica.parameters:
            for one in parameters:
                if not one.requires_grad:
                    one.grad = None
        if self.uneven:
            self.uneven.before_step()
        self._resume(Apply)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._following:
            return
        if self._served:
            self._served.show_gradients()
        else:
            self._resume(Gradient)
        self.phase = "data"
        self._heartbeat.enter("script")  # whatever the script does next takes as long as it takes


def _trains(model: nn.Module) -> bool:
    """Whether a call of the model is for a gradient, and not one that checkpointing repeats in backward."""
    return model.training and torch.is_grad_enabled() and not in_backward()

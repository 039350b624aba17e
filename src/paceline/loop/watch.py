"""``paceline.watch``: where the time of a script goes, without a part in its training."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from paceline.errors import UsageError, reason, say_on_stderr
from paceline.loop.ddp import DDPExchanges, active_ddp
from paceline.loop.moments import MomentHooks, Moments
from paceline.loop.process import NO_STRATEGY, ScriptProcess
from paceline.loop.replica import prepare_script
from paceline.loop.store_comm import StoreComm, meet
from paceline.loop.torch_hooks import ReplacedBackward, in_backward, never_compiled
from paceline.loop.watch_recorder import ExchangeLengths, WatchRecorder
from paceline.records.events import EventWriter
from paceline.records.folder import RUNS
from paceline.records.load import SystemSampler
from paceline.records.summary import Observer
from paceline.reports.findings import diagnose
from paceline.reports.progress import ConsoleObserver, Tee
from paceline.reports.trace import TraceObserver
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.recorder import SETTLE_EVERY
from paceline.runtimes.live.worker.records import RunRecords
from paceline.runtimes.live.worker.start import sample_system
from paceline.runtimes.session import Ending, Position
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy
from paceline.strategies.base import Worker

AFTER_LAST_STEP = 5.0
"""Seconds that a worker waits, when its script has ended, until the last exchanges are compared."""


def watch(model: nn.Module, optimizer: Optimizer) -> "Watch":
    """Record where the time of this script's steps goes, from its next step to its end; nothing else changes.

    The model is in one process or under DistributedDataParallel, which may be what is given, or be made of it later.
    """
    process = ScriptProcess.here()
    process.check_free(model, optimizer)
    _check_unused(process)
    if process.is_plain:
        process.runs = RUNS.absolute()
    process.records += 1
    watched = WatchedSteps(process, model, optimizer)
    process.join(watched)
    return Watch(process, watched)


class Watch:
    """A script that is being watched."""

    def __init__(self, process: ScriptProcess, steps: "WatchedSteps") -> None:
        self._process, self._steps = process, steps

    def stop(self) -> None:
        """End the record here, and not where the script ends. It may be watched again, in another record."""
        process, steps = self._process, self._steps
        if process.joined is steps:
            process.joined = None
            steps.finish()


class ScriptConsole(ConsoleObserver):
    """Shows what is recorded, and where a step went; the script shows its own progress, and its own results."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, sys.stderr, diagnose=diagnose)

    def show(self) -> None:
        pass


class WatchedSteps:
    """The steps of one worker. What goes wrong here ends the watching, and never the script."""

    recorder: WatchRecorder
    _records: RunRecords
    _comm: SoloComm
    _sampler: SystemSampler | None = None
    _next_record = float("inf")
    """The reading of the clock from which on records are made of what was noted."""
    agrees = stopped = False

    def __init__(self, process: ScriptProcess, model: nn.Module, optimizer: Optimizer) -> None:
        self._process, self._optimizer = process, optimizer
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._observer = Observer()
        self._writing, self._held = ExitStack(), ExitStack()
        self._me: Worker | None = None
        self._ddp: DDPExchanges | None = None
        self._averages = self._before_model = False
        self._evaluation: RemovableHandle | None = None
        """Tells when the model has been evaluated, from the first call that does not train to one that does."""
        self._moments = Moments()
        self._hooks = MomentHooks(self._moments, self._before_training, self._before_evaluation)
        self._registered: list[RemovableHandle | ReplacedBackward] = []
        self.begin_watching(model)

    def begin_watching(self, model: nn.Module) -> None:
        self._registered += self._hooks.register(self._model, self._optimizer)
        if isinstance(model, DistributedDataParallel):
            self._watch_ddp(model)

    def _watch_ddp(self, ddp: DistributedDataParallel) -> None:
        self._ddp = DDPExchanges(ddp)
        if self._ddp.has_buffers:
            hook = never_compiled(self._ddp_begins)
            self._registered.append(ddp.register_forward_pre_hook(hook, with_kwargs=True))
        accumulated = never_compiled(self._accumulated)
        self._registered += [
            one.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
            for one in self._ddp.trained
        ]

    def _guarded(self, doing: Callable[..., None], *arguments: Any) -> None:
        try:
            doing(*arguments)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.end_watching()
        self._me, self._process.joined = None, None
        with suppress(OSError), closing(self._observer), self._held:
            self._writing.close()
        say_on_stderr(f"paceline.watch has stopped, and the script goes on: {reason(error)}")

    def _before_training(self, samples: int) -> float:
        self._guarded(self._prepare_forward, samples)
        return 0.0 if self._ddp else self._next_record

    def _prepare_forward(self, samples: int) -> None:
        """What is not done at every step of a model by itself."""
        if self._me is None:
            self._find_ddp()
            self._open(samples)
        elif perf_counter() >= self._next_record:
            self._record()
        if self._evaluation:
            self._evaluation.remove()
            self._evaluation = None
        if self._ddp and not in_backward():  # in which checkpointing repeats a forward
            self._averages = self._ddp.averages_next
            if self._before_model:
                self._moments.now(self._ddp.buffers)
                self._before_model = False

    def _find_ddp(self) -> None:
        ddp = active_ddp()
        if ddp is not None and self._ddp is None:
            self._watch_ddp(ddp)

    def _record(self) -> None:
        """Make records of what was noted, and show how far the script is."""
        samples = self.recorder.samples
        self.recorder.record_noted()
        self._next_record = perf_counter() + SETTLE_EVERY
        assert self._me is not None
        trained = (self.recorder.samples - samples) * self._me.workers
        self._records.stepped(self.recorder.steps, trained, float("nan"), self.recorder.now)

    def _before_evaluation(self, model: nn.Module) -> None:
        if self._evaluation is None:
            self._evaluation = model.register_forward_hook(never_compiled(self._evaluated))

    def _evaluated(self, model: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._moments.now("evaluated")

    def _ddp_begins(self, ddp: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Its forward begins before that of the model: it may make all buffers rank 0's first."""
        if self._me and ddp.training and torch.is_grad_enabled() and not in_backward():
            self._guarded(self._prepare_buffers)
            self._moments.now(0)

    def _prepare_buffers(self) -> None:
        assert self._ddp is not None
        self._before_model = self._ddp.broadcasts_buffers

    def _accumulated(self, parameter: nn.Parameter) -> None:  # noqa: ARG002
        """The first gradient is there. DDP waits for its sums in a callback that is not queued yet."""
        if self._averages:
            self._averages = False
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        """All gradients are there, and DDP's callback is queued."""
        self._moments.now("gradient")
        torch.autograd.Variable._execution_engine.queue_callback(self._averaged)

    def _averaged(self) -> None:
        assert self._ddp is not None
        self._moments.now(self._ddp.gradient)

    def _tell_launcher(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        assert self._me is not None
        self._me.clock += 1
        self._process.heartbeat.beat(self._me.clock)

    def _open(self, samples: int) -> None:
        """All workers are in their first forward: the record begins."""
        process = self._process
        group = self._ddp.ddp.process_group if self._ddp else None
        device = next(self._model.parameters()).device
        self._comm, process.info = meet(process.info, group, device, f"watch/{process.records}")
        sizes = tuple(self._comm.exchange(max(1, samples)))
        settings = process.settings(self._strategy(), "identity", sizes)
        prepared = prepare_script(settings, build_strategy(settings.strategy), self._model, self._optimizer)
        params, buffers = (
            torch.empty(sum(one.numel() for one in many), device="meta")
            for many in (self._model.parameters(), self._model.buffers())
        )
        me = Worker(self._comm.rank, self._comm.workers, params, params, buffers)
        self._observer = _observer(process, settings)
        self._records = RunRecords(prepared, self._comm, self._observer, me)
        task = process.task(settings)
        self._held.enter_context(self._records.hold(task, None))
        process.heartbeat.show(self._records.folder.path)
        self._records.open(0, restored=True)
        if process.info.local_rank == 0:
            sampler = sample_system(self._records, task, self._observer)
            self._sampler = self._writing.enter_context(sampler)
        file = self._records.folder.events(self._comm.rank)
        events = self._writing.enter_context(EventWriter(file))
        task.before_hard_end(events.flush)
        self._records.started(0, float(self._optimizer.param_groups[0]["lr"]))
        for sentence in self._unseen():
            self._records.noted(sentence)
        lengths = None
        if isinstance(self._comm, StoreComm) and self._ddp:
            lengths = ExchangeLengths(self._comm.store, self._comm.rank, self._comm.workers)
        # Ranks of a host read the same clock, and their spans count from the same moment.
        begun = self._comm.exchange(perf_counter())[self._records.local[0]]
        self._moments.take()  # of what was before the record begins
        self.recorder = WatchRecorder(
            lengths, events, self._records.ledger, self._moments, perf_counter() - begun
        )
        self._next_record = perf_counter() + SETTLE_EVERY
        if process.info.launch is not None:
            told = self._optimizer.register_step_post_hook(never_compiled(self._tell_launcher))
            self._registered.append(told)
        self._me = me

    def _strategy(self) -> str:
        if self._ddp:
            return self._ddp.strategy
        return "none" if self._comm.workers == 1 else "own"

    def _unseen(self) -> list[str]:
        """What the record cannot show, a sentence each."""
        found = []
        if isinstance(self._comm, StoreComm) and self._ddp is None:
            found.append(
                "how the workers agree is not seen, as the model is in no DistributedDataParallel: what they exchange "
                "counts as the phase in which they do"
            )
        if self._ddp and self._ddp.own_hook:
            found.append(
                f"the script's communication hook {self._ddp.own_hook} decides what is sent: bytes are not counted"
            )
        if any(one.is_cuda for one in self._model.parameters()):
            found.append(
                "on a GPU, times are those of Python, which launches kernels and does not wait for them: a phase that "
                "reads a result, such as loss.item(), has the time of what it waits for"
            )
        return found

    def finish(self) -> Ending:
        self._conclude("budget")
        return "budget"

    def abandon(self) -> None:
        self._conclude("interrupted")

    def _conclude(self, ending: Ending) -> None:
        """The script has ended: add up what all workers did."""
        self.end_watching()
        me = self._me
        with suppress(OSError), self._held, self._writing:
            if me is None:
                return
            try:
                if isinstance(self._comm, StoreComm):
                    self._comm.is_over = True
                self.recorder.finish(AFTER_LAST_STEP)
                me.clock, me.now = self.recorder.steps, self.recorder.now
                self._writing.close()
                self._records.finished(ending, Position(progress=me.clock), self._sampler)
            except Exception as error:
                say_on_stderr(f"the record of paceline.watch has no summary: {reason(error)}")
            finally:
                self._observer.close()

    def end_watching(self) -> None:
        for hook in [*self._registered, *filter(None, [self._evaluation])]:
            hook.remove()
        self._registered.clear()
        self._evaluation = None


def _observer(process: ScriptProcess, settings: Settings) -> Observer:
    """What 'paceline run' was told to show; else on stderr, as results of the script itself are on stdout."""
    if process.info.launch is not None:
        return process.observe(settings)
    return Tee([ScriptConsole(), TraceObserver()])


def _check_unused(process: ScriptProcess) -> None:
    for what, named in (("strategy", process.strategy), ("codec", process.codec)):
        if named not in (None, NO_STRATEGY):
            raise UsageError(
                f"the run was started with {what} {named}, and {process.script} calls watch(), which only measures; "
                f"leave the {what} out, or have the script call paceline.distribute()"
            )

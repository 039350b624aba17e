"""A process that runs a user's script: what its launcher told it, and what is left to do when the script ends."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UsageError, say_on_stderr
from paceline.jobs.spec import JobSpec
from paceline.loop.group import process_of_group
from paceline.records.folder import RUNS
from paceline.records.summary import Observer
from paceline.reports.progress import ConsoleObserver, Tee
from paceline.reports.trace import TraceObserver
from paceline.runtimes.live.failures import command
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.worker.guard import tell_uncaught
from paceline.runtimes.prepare import check_settings, short_codec
from paceline.runtimes.session import Ending
from paceline.runtimes.settings import Cadence, Settings
from paceline.specs import shorten
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy, SyncPoint

NO_STRATEGY = "none"
"""What is named in place of a strategy where the workers are only started, and perhaps measured."""


class Joined(Protocol):
    """What a script has joined a run with."""

    @property
    def agrees(self) -> bool:
        """Whether all workers stop at the same step when one is asked to; else a signal interrupts at once."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether they have agreed to, and this worker has reached that step."""
        ...

    def finish(self) -> Ending: ...

    def abandon(self) -> None: ...


@dataclass(kw_only=True)
class ScriptProcess:
    """What a process knows of the run before its script calls ``distribute``."""

    current: ClassVar["ScriptProcess | None"] = None
    """The process's own: a process is one worker."""

    script: str
    info: ProcessInfo
    heartbeat: Heartbeat
    observe: Callable[[Settings], Observer]
    runs: Path
    is_plain: bool = False
    """Whether there is no launcher: then nothing is kept, unless the script asks for it by ``watch``."""
    records: int = 0
    """How many ``watch`` has begun."""
    name: str = ""
    """What to call the run; else it is called as the script is."""
    strategy: str | None = None
    """As the command line says, which wins; ``NO_STRATEGY`` where nothing is to be distributed."""
    codec: str | None = None
    options: LiveOptions = field(default_factory=LiveOptions)
    stop_requested: Callable[[], bool] = lambda: False
    """Without a launcher of ours, Ctrl-C ends the script where it is."""
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None
    joined: Joined | None = None
    has_joined: bool = False
    exit_code: object = None
    """What the script has called sys.exit() with since it joined."""
    stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def here(cls) -> "ScriptProcess":
        """This process's, by the variables of its launcher; without a launcher there is one worker."""
        if cls.current is None:
            cls.current = cls._of_environment()
            _tell_failures(cls.current)
            _remember_exit_code(cls.current)
            atexit.register(cls.current.end)
            if parent_process() is not None:  # a child of multiprocessing ends without what atexit has
                Finalize(None, cls.current.end, exitpriority=0)
        return cls.current

    @classmethod
    def _of_environment(cls) -> "ScriptProcess":
        info, stack = ProcessInfo.from_environment(), ExitStack()
        launched = info is not None
        info = info or ProcessInfo()
        runs = (
            RUNS.absolute() if launched else Path(stack.enter_context(TemporaryDirectory(prefix="paceline-")))
        )
        return cls(
            script=script_name(sys.argv[0]),
            info=info,
            heartbeat=Heartbeat(info),
            observe=_show if launched else lambda _: Observer(),
            runs=runs,
            is_plain=not launched,
            options=LiveOptions(threads=torch.get_num_threads()),
            stack=stack,
        )

    def choose(self, strategy: str | None, codec: str | None) -> tuple[str, str]:
        """What the command line says, else what the script does, else the defaults."""
        if self.strategy == NO_STRATEGY:
            raise UsageError(
                f"{self.script} calls distribute(), and the run was started with strategy {NO_STRATEGY}, which "
                "distributes nothing; leave that out, or name a strategy"
            )
        if strategy is not None and self.strategy is not None:
            used, named = (shorten(one, STRATEGIES) for one in (self.strategy, strategy))
            self._say_overruled("strategy", used, named)
        if codec is not None and self.codec is not None:
            self._say_overruled("codec", short_codec(self.codec), short_codec(codec))
        return self.strategy or strategy or Settings.strategy, self.codec or codec or Settings.codec

    def _say_overruled(self, what: str, used: str, named: str) -> None:
        if used != named and self.info.rank == 0:
            say_on_stderr(
                f"the {what} is {used}, as the command line says, and not {named}, as the script does"
            )

    def take_group(self) -> None:
        """Be what this process is in the group that is formed already, if there is one; all its ranks call this."""
        found = process_of_group(None if self.is_plain else self.info)
        if found is None:
            return
        self.info = found
        if self.is_plain:
            self.is_plain, self.runs, self.observe = False, RUNS.absolute(), _show

    def settings(self, strategy: str, codec: str, batch_sizes: tuple[int, ...]) -> Settings:
        return script_settings(self.script, strategy, codec, batch_sizes, self.info.servers or 1)

    def task(self, settings: Settings) -> ProcessTask:
        return ProcessTask(
            settings=settings,
            options=self.options,
            info=self.info,
            runs=self.runs,
            heartbeat=self.heartbeat,
            stop_requested=self.stop_requested,
            before_hard_end=self.before_hard_end,
            name=self.name or self.script.removesuffix(".py"),
        )

    @cached_property
    def seed(self) -> int:
        """By which samples are dealt; rank 0's counts."""
        return torch.initial_seed()

    def join(self, joined: Joined) -> None:
        self.joined, self.has_joined, self.exit_code = joined, True, None

    def check_free(self, model: object, optimizer: object) -> None:
        for name, given, kind in (("nn.Module", model, nn.Module), ("optim.Optimizer", optimizer, Optimizer)):
            if not isinstance(given, kind):
                raise UsageError(
                    f"a {type(given).__name__} is given in place of a torch.{name}: call distribute(model, optimizer) "
                    "or watch(model, optimizer)"
                )
        if self.info.role == "server":
            raise UsageError(
                f"{self.script} is imported by a server, for the optimizer that it defines, and trains when it is "
                "imported; put the training under if __name__ == '__main__', or the optimizer into a module of its own"
            )
        if self.joined is not None:
            raise UsageError(
                "distribute() or watch() was called twice in one process, and a worker has one model and one "
                "optimizer; put what is trained into one module, and call one of them once"
            )

    def close(self, *, failed: bool) -> Ending:
        """The script has ended: by itself, or by an exception that nothing has caught."""
        joined, self.joined = self.joined, None
        if joined and failed:
            joined.abandon()
        elif joined:
            return joined.finish()
        return "budget"

    def end(self) -> None:
        """The interpreter ends; it would print what is raised here, and its exit code be 0."""
        try:
            with self.stack:
                self.close(failed=self._has_failed())
        except BaseException as error:
            code = tell_uncaught(error, self.info, self.heartbeat)
            if code is None:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(1 if code is None else code)

    def _has_failed(self) -> bool:
        """By an exception that nothing has caught: of the interpreter, or of a child of multiprocessing that ends."""
        ends = sys.exc_info()[1]
        raised = ends is not None and not (isinstance(ends, SystemExit) and not ends.code)
        return raised or getattr(sys, "last_value", None) is not None or bool(self.exit_code)


def _tell_failures(process: ScriptProcess) -> None:
    """What ends the script is a sentence where a traceback would say no more."""
    tell_others = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        code = tell_uncaught(error, process.info, process.heartbeat)
        if code is None:
            tell_others(kind, error, trace)
        elif sys.excepthook is tell:  # else that of a process group has called it, and shows what was told
            raise SystemExit(code)

    sys.excepthook = tell


def _remember_exit_code(process: ScriptProcess) -> None:
    """Nothing else tells, when the interpreter ends, whether the script has failed."""
    leave = sys.exit

    def leave_with(code: Any = None) -> NoReturn:
        process.exit_code = code
        leave(code)

    sys.exit = leave_with


def _show(_: Settings) -> Observer:
    return Tee([ConsoleObserver(), TraceObserver()])


def script_name(path: str) -> str:
    """As records name it; a colon would make it an import path."""
    return (Path(path).name or "script").replace(":", "-")


def script_settings(
    script: str, strategy: str, codec: str, batch_sizes: tuple[int, ...], servers: int = 1
) -> Settings:
    return Settings(
        job=JobSpec(path=script),
        strategy=strategy,
        codec=codec,
        batch_sizes=batch_sizes,
        servers=servers,
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
    )


def check_script(settings: Settings, *, servers: bool) -> Strategy:
    """Build the strategy; refuse what a script's loop cannot do. ``servers``: whether there are any, where needed."""
    strategy, name = check_settings(settings), f"strategy {settings.strategy!r}"
    instead = "choose another strategy, or train a job with 'paceline train'"
    if strategy.served and not servers:
        started = f"{command('run', strategy=settings.strategy)} {settings.job.path}"
        raise UsageError(
            f"{name} keeps the parameters on servers, and here are none; start the script with '{started}', or choose "
            "a strategy without servers"
        )
    plan = strategy.learner_plan
    if plan.count is None:
        raise UsageError(
            f"{name} finds the number of learners by measuring a job, and a script's loop cannot be run to measure "
            "it; give the number, such as learners=2"
        )
    if plan.compute == "together":
        raise UsageError(
            f"{name} computes its learners by one traced program, and a script computes its loss itself; leave "
            "compute=together out"
        )
    if strategy.partition(settings.workers).clients:
        raise UsageError(
            f"{name} divides the data among clients and chooses whose mini-batch comes next, and a script has its own "
            f"data; {instead}"
        )
    if strategy.sync_point is SyncPoint.AFTER_ROUND and settings.workers > 1:
        raise UsageError(
            f"{name} has rounds in which workers take different numbers of steps, and a script's loop takes as many as "
            "it has mini-batches; give the period in steps, or in a class of your own say SyncPoint.EVERY_STEP, if all "
            "workers take the same steps"
        )
    return strategy

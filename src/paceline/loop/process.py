"""A process that runs a user's script: what its launcher told it, and what is left to do when the script ends."""

import atexit
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Protocol

import torch

from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.loop.group import process_of_group
from paceline.records.summary import Observer
from paceline.reports.progress import ConsoleObserver, Tee
from paceline.reports.trace import TraceObserver
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.settings import Cadence, Settings


class Joined(Protocol):
    """What a script has joined a run with."""

    def finish(self) -> None: ...

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
    options: LiveOptions = field(default_factory=LiveOptions)
    joined: Joined | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def here(cls) -> "ScriptProcess":
        """This process's, by the variables of its launcher; without a launcher there is one worker."""
        if cls.current is None:
            cls.current = cls._of_environment()
            atexit.register(cls.current.end)
        return cls.current

    @classmethod
    def _of_environment(cls) -> "ScriptProcess":
        info, stack = process_of_group(ProcessInfo.from_environment()), ExitStack()
        launched = info is not None
        info = info or ProcessInfo()
        runs = Path("runs") if launched else Path(stack.enter_context(TemporaryDirectory(prefix="paceline-")))
        return cls(
            script=script_name(sys.argv[0]),
            info=info,
            heartbeat=Heartbeat(info),
            observe=lambda _: Tee([ConsoleObserver(), TraceObserver()]) if launched else Observer(),
            runs=runs,
            is_plain=not launched,
            options=LiveOptions(threads=torch.get_num_threads()),
            stack=stack,
        )

    def settings(self, strategy: str, codec: str, batch_sizes: tuple[int, ...]) -> Settings:
        return Settings(
            job=JobSpec(path=self.script),
            strategy=strategy,
            codec=codec,
            batch_sizes=batch_sizes,
            evaluate=Cadence(0),
            checkpoint=Cadence(0),
        )

    def task(self, settings: Settings) -> ProcessTask:
        return ProcessTask(
            settings=settings,
            options=self.options,
            info=self.info,
            runs=self.runs,
            heartbeat=self.heartbeat,
            stop_requested=lambda: False,  # Ctrl-C ends the script where it is
            name=Path(self.script).stem,
        )

    @cached_property
    def seed(self) -> int:
        """By which samples are dealt; rank 0's counts."""
        return torch.initial_seed()

    def join(self, joined: Joined) -> None:
        self.joined = joined

    def check_free(self) -> None:
        if self.joined is not None:
            raise UsageError(
                "distribute() or watch() was called twice in one process, and a worker has one model and one "
                "optimizer; put what is trained into one module, and call one of them once"
            )

    def end(self) -> None:
        """The script has ended: by itself, or by an exception that nothing has caught."""
        self.close(failed=getattr(sys, "last_value", None) is not None)

    def close(self, *, failed: bool) -> None:
        joined, self.joined = self.joined, None
        try:
            if joined and failed:
                joined.abandon()
            elif joined:
                joined.finish()
        finally:
            self.stack.close()


def script_name(path: str) -> str:
    """As records name it; a colon would make it an import path."""
    return (Path(path).name or "script").replace(":", "-")

"""A user's script as each worker of a run that our launcher starts: ``paceline run``."""

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

import paceline.loop.distribute  # noqa: F401  what every script calls, loaded before workers are forked
from paceline.errors import ScriptExited, UsageError, say_on_stderr
from paceline.loop.process import NO_STRATEGY, ScriptProcess, check_script, script_name, script_settings
from paceline.loop.server import run_script_server
from paceline.records.folder import check_parent
from paceline.records.summary import Observer
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.launcher.launch import Main, launch, paceline_command, starting
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import VARIABLE, ProcessInfo
from paceline.runtimes.live.request import LiveOptions, servers_of
from paceline.runtimes.live.signals import StopRequest, in_every_child
from paceline.runtimes.live.worker.guard import UNUSED, HasEnding, run_guarded
from paceline.runtimes.settings import Settings
from paceline.shm import PeerLost

_MAIN = "__main__"
_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass(frozen=True, kw_only=True)
class Script:
    """A Python program with its arguments: a file, or a module as after ``python -m``."""

    path: str
    arguments: Sequence[str] = ()
    is_module: bool = False
    misplaced: str = ""
    """An argument that may have been meant for the run, which is said as it begins, and where the script refuses it."""

    def __post_init__(self) -> None:
        if not self.is_module and not Path(self.path).is_file():
            raise UsageError(
                f"there is no file {self.path} in {Path.cwd()}; name the script after all options of paceline, or a "
                "module with -m"
            )

    @property
    def name(self) -> str:
        """As records name it."""
        return self.path if self.is_module else script_name(self.path)

    @property
    def hint(self) -> str:
        """Where options of the run go; empty where none may be misplaced."""
        if not self.misplaced:
            return ""
        return f"{self.misplaced} after the script is the script's own, paceline's come before it"

    def search(self) -> None:
        """Find modules where the script does."""
        sys.path.insert(0, str(Path.cwd() if self.is_module else Path(self.path).resolve().parent))

    def run(self) -> None:
        """Be this program, as ``python`` would: ``__main__``, ``sys.argv`` and ``sys.path`` are the script's."""
        sys.argv = [self.path, *self.arguments]
        self.search()
        file = Path(self.path)
        if self.is_module:
            self._check_module()
            runpy.run_module(self.path, run_name=_MAIN, alter_sys=True)
            return
        # Not by runpy, which gives sys.argv another first word, and forgets the module when its code has run.
        sys.modules[_MAIN] = module = ModuleType(_MAIN)
        vars(module).update(__file__=str(file.absolute()), __builtins__=__builtins__)
        exec(compile(file.read_bytes(), file.absolute(), "exec", dont_inherit=True), vars(module))  # noqa: S102

    def _check_module(self) -> None:
        try:
            runpy._get_module_details(self.path)  # type: ignore[attr-defined]  # what run_module does first
        except ImportError as error:
            raise UsageError(
                f"module {self.path} cannot be run: {error}; run from the folder that holds it"
            ) from None


@dataclass(frozen=True, kw_only=True)
class ScriptRequest:
    """What is asked of the run of a script."""

    script: Script
    strategy: str | None = None
    """None is as the script says."""
    codec: str | None = None
    servers: int | None = None
    options: LiveOptions
    observe: Callable[[Settings], Observer]
    runs: Path
    name: str = ""

    def count_servers(self, workers: int) -> int:
        """How many the run has. What contradicts itself is refused, and of the user's code only a strategy imported."""
        if self.strategy == NO_STRATEGY:
            for what, value in (("codec", self.codec), ("servers", self.servers)):
                if value is not None:
                    raise UsageError(
                        f"{what} {value} cannot be used with strategy {NO_STRATEGY}, where nothing of ours is sent; "
                        "leave one of them out"
                    )
            return 0
        strategy, codec = self.strategy or Settings.strategy, self.codec or Settings.codec
        settings = script_settings(self.script.name, strategy, codec, (1,) * workers, self.servers or 1)
        check_script(settings, servers=True)
        return servers_of(settings, self.options)

    def process(self, info: ProcessInfo, heartbeat: Heartbeat, stopping: StopRequest) -> ScriptProcess:
        return ScriptProcess(
            script=self.script.name,
            info=info,
            heartbeat=heartbeat,
            observe=self.observe,
            runs=self.runs.absolute(),  # the script may go to another folder
            name=self.name,
            strategy=self.strategy,
            codec=self.codec,
            options=self.options,
            stop_requested=stopping if info.launch is None else stopping.interrupted,
            before_hard_end=stopping.before_hard_end,
        )


def launch_script(request: ScriptRequest, plan: LaunchPlan, main: Main, arguments: Sequence[str]) -> int:
    """Start the command as each worker of this host; each of them runs the script."""
    with starting(main, needed=__name__) as start:
        servers, options = request.count_servers(plan.nodes * plan.workers), request.options
        check_parent(request.runs)
        plan = replace(plan, kind="script", servers=servers, silence=options.silence, hang=options.hang)
        return launch(paceline_command(arguments), plan, start=start)


class _Ended(NamedTuple):
    ending: str


def run_script(request: ScriptRequest, info: ProcessInfo) -> int:
    """Be one worker of the run to the end of its script, or one of its servers."""
    return run_guarded(info, partial(_work, request, info))


def _work(
    request: ScriptRequest, info: ProcessInfo, heartbeat: Heartbeat, stopping: StopRequest
) -> HasEnding:
    torch.set_num_threads(request.options.threads)
    process = ScriptProcess.current = request.process(info, heartbeat, stopping)
    if info.role == "server":
        request.script.search()
        return run_script_server(process, request.script.path)
    _show_workers_only(info)
    try:
        with _interrupts(process) as signals:
            request.script.run()
    except SystemExit as leaving:
        if leaving.code:
            process.close(failed=True)
            raise _exited(leaving, request.script) from None
    except KeyboardInterrupt:
        joined = process.joined
        if not (joined and joined.stopped):
            process.close(failed=True)
            if not signals:  # the script has raised it itself
                raise
            return _Ended("interrupted")
    except BaseException:
        process.close(failed=True)
        raise
    ending = process.close(failed=False)
    if not process.has_joined and info.rank == 0:
        _say_unused(process)
    heartbeat.enter("script" if process.has_joined else "starting")
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of every program: threads may still save
    return _Ended(ending if process.has_joined else UNUSED)


@contextmanager
def _interrupts(process: ScriptProcess) -> Iterator[Sequence[int]]:
    """A signal interrupts a script where it is, unless its workers agree on the step at which all stop.

    By SIGTERM our launcher says that another worker has failed, and the system that the launcher has died.
    Gives the signals that have come.
    """
    come: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        come.append(signum)
        if signum == signal.SIGTERM and process.info.launch is not None:
            raise PeerLost("this worker was told to end")
        if process.joined is None or not process.joined.agrees:
            raise KeyboardInterrupt

    def forget() -> None:
        """A child of the script ends as it would without a run."""
        for signum, default in _DEFAULTS.items():
            if signal.getsignal(signum) is handle:
                signal.signal(signum, default)

    old = {signum: signal.signal(signum, handle) for signum in _DEFAULTS}
    in_every_child(_DEFAULTS, forget)
    try:
        yield come
    finally:
        for signum, before in old.items():
            signal.signal(signum, before)


def _exited(leaving: SystemExit, script: Script) -> ScriptExited:
    """With a code that is not 0; any other value is printed, as Python does."""
    code = leaving.code if isinstance(leaving.code, int) else 1
    if code is not leaving.code:
        sys.stderr.write(f"{leaving.code}\n")
    hint = f"; {script.hint}" if code == 2 and script.hint else ""
    return ScriptExited(f"exit code {code}{hint}", code & 0xFF)


def _show_workers_only(info: ProcessInfo) -> None:
    """What torchrun would say to a script; the run's own store and its servers are not for it."""
    if info.launch is None:
        return
    os.environ.pop(VARIABLE, None)
    shown = {
        "RANK": info.rank,
        "WORLD_SIZE": info.workers,
        "LOCAL_RANK": info.local_rank,
        "LOCAL_WORLD_SIZE": info.local_workers,
        "MASTER_PORT": info.free_port,
    }
    os.environ.update({name: str(value) for name, value in shown.items()})


def _say_unused(process: ScriptProcess) -> None:
    call = "watch" if process.strategy == NO_STRATEGY else "distribute"
    apart = "" if call == "watch" or process.info.workers == 1 else "each worker was on its own, and "
    say_on_stderr(
        f"{process.script} ended without a call of paceline.{call}(model, optimizer): {apart}nothing was recorded"
    )

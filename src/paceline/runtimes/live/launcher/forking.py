"""Workers and servers as forks of one process that has imported torch and no code of the user's.

A new interpreter takes more than a second to import torch, and 150 MB that forks share. The fork server is forked from
the launcher before it starts a thread, opens a socket or imports the user's code. It imports what all processes need
while the launcher goes on, forks all of them when it gets their variables, and ends: from then on they are the
launcher's own children, which it signals and waits for like any other.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn, Self

from paceline.runtimes import prctl
from paceline.runtimes.live.launcher import processes
from paceline.runtimes.live.process_info import ProcessInfo, file_stem, proc_stat
from paceline.runtimes.live.signals import leave

Environ = Mapping[str, str]
_BEGIN = b"b"


def may_fork() -> bool:
    """Whether a fork of this process equals a new interpreter: no other thread holds a lock, no CUDA device is used."""
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    return sys.platform == "linux" and threading.active_count() == 1 and not has_cuda


class ForkServer:
    """A context in the main thread, around whatever imports the user's code and starts threads.

    ``run`` does in a fork what a command does in a new interpreter; ``preload`` imports what it needs.
    """

    def __init__(self, run: Callable[[Sequence[str]], int], preload: Callable[[], None]) -> None:
        self._run, self._preload = run, preload

    def __enter__(self) -> Self:
        self._ours, theirs = Pipe()
        released, self._release = os.pipe()
        prctl.adopt_orphans(True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.freeze()  # a collection in a fork would write to every page that it shares
        launcher = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._release)
            self._ours.close()
            self._serve(launcher, theirs, released)
        theirs.close()
        os.close(released)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self, command: Sequence[str], environs: Sequence[Environ]) -> Iterable[int]:
        try:
            self._ours.send((list(command), [dict(environ) for environ in environs]))
            pids: list[int] = self._ours.recv()
        except (OSError, EOFError):
            self._end()  # and the forks that it may have made
            return processes.start(command, environs)
        self._end(_BEGIN * len(environs))
        return pids

    def _end(self, word: bytes = b"") -> None:
        """End the fork server; its forks become children of this process, and end too unless ``word`` releases them."""
        if self._pid:
            self._ours.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            prctl.adopt_orphans(False)
            with suppress(BrokenPipeError):  # it has no forks
                os.write(self._release, word)
            os.close(self._release)

    def _serve(self, launcher: int, line: "Connection[Any, Any]", released: int) -> NoReturn:
        try:
            os.setsid()  # Ctrl-C is for the launcher
            prctl.die_with_parent()
            if os.getppid() != launcher:
                os._exit(1)
            self._preload()
            gc.freeze()
            command, environs = line.recv()
            pids = [self._fork(command, environ, line, released) for environ in environs]
            line.send(pids)
            signal.pause()  # until the launcher has read this and ends it
        finally:
            os._exit(1)  # without a message: new interpreters find out what is wrong

    def _fork(
        self, command: Sequence[str], environ: Environ, line: "Connection[Any, Any]", released: int
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            line.close()
            if os.read(released, 1) != _BEGIN:
                os._exit(1)
            os.close(released)
            _take(environ)
            code = self._run(command)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)


def _take(environ: Environ) -> None:
    threads = environ.get("OMP_NUM_THREADS")
    if threads != os.environ.get("OMP_NUM_THREADS") and threads and threads.isdecimal():
        sys.modules["torch"].set_num_threads(int(threads))  # which was read when torch was imported
    os.environ.clear()
    os.environ.update(environ)
    if not sys.flags.safe_path:
        del sys.path[0]
    # Python draws a new seed for itself in a fork; these would go on alike in all workers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    info = ProcessInfo.from_environment(environ)
    if info is not None:
        alike = info.servers if info.role == "server" else info.workers
        who = f"{file_stem(info.rank, info.role).replace('-', ' ')} of {alike}"
        title = f"paceline: {who}, local rank {environ['LOCAL_RANK']}".encode()
        prctl.show_as(who)
        with suppress(ValueError):  # the command line that ps and top show
            begin, end = map(int, proc_stat(os.getpid())[45:47])
            if 0 < begin < end:
                ctypes.memmove(begin, title[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)

"""The command, as a user runs it, and other programs that need torch."""

import atexit
import contextlib
import faulthandler
import gc
import io
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from paceline.cli.main import main

TESTS = str(Path(__file__).parent)
_KEPT: list[Any] = []
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def start_python(
    *words: str,
    cwd: Path | None = None,
    env: Mapping[str, str] = {},
    first: Callable[[], None] = lambda: None,
    **more: Any,
) -> "subprocess.Popen[str]":
    """Start ``python *words``, a module or a script, as a fork of this process, which has torch already.

    A new interpreter would take seconds to import it. Workers that the program starts are forks of it in turn.
    ``env`` is added to the environment, ``first`` is called before the program; ``more`` is as for Popen.
    """
    # The fork ends where a new program would begin, and never returns from there.
    return subprocess.Popen(
        ["python", *words],
        preexec_fn=partial(_be, words, env, first),
        restore_signals=False,
        cwd=cwd,
        text=True,
        **(more or PIPES),
    )


def _be(words: tuple[str, ...], env: Mapping[str, str], first: Callable[[], None]) -> None:
    """Do what ``python *words`` does, and end; nothing of the tests is to be seen here."""
    code = 1
    try:
        gc.freeze()  # what the tests have left would close files and join threads that are not this process's
        _empty_descriptors()
        _forget_tests()
        os.environ.update(env)
        first()
        code = _code_of(words)
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of every program
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _empty_descriptors() -> None:
    """Have all files of the tests lead nowhere; that closes what Popen waits for, as exec would do it.

    Their numbers stay taken: what the tests have left, such as a handler of a log, still writes to them, and would
    write into files of the program.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != nowhere:
            os.dup2(nowhere, number, inheritable=False)


def _forget_tests() -> None:
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(TESTS):
            _KEPT.append(sys.modules.pop(name))  # a program that needs it imports its own
    atexit._clear()
    tempfile.tempdir = None  # which it has looked up already
    sys.excepthook = sys.__excepthook__
    faulthandler.disable()
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    for silent in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", silent)
    warnings.showwarning = _show
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()


def _show(
    message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _code_of(words: tuple[str, ...]) -> int:
    """Run it; its exit code."""
    words = words[words[0] == "-P" :]
    module = words[0] == "-m"
    sys.argv = list(words[1:] if module else words)
    sys.path.insert(0, str(Path.cwd() if module else Path(words[0]).parent))
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException as error:
        return _uncaught(error)
    return 0


def _exit_code(leaving: SystemExit) -> int:
    if isinstance(leaving.code, str):
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    return int(leaving.code or 0)


def _uncaught(error: BaseException) -> int:
    """Tell it as the interpreter does, which then ends as ever."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_code(leaving)
    return 1


def local_rank(pid: int) -> int:
    """Which of its launcher's processes one is, by the command line that it shows."""
    title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert title.startswith("paceline: "), f"process {pid} is no forked worker or server: {title}"
    return int(title.split()[-1])


def run_python(*words: str, seconds: float = 110, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python *words`` to its end as ``start_python`` starts it."""
    with start_python(*words, **more) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_paceline(
    *arguments: str, cwd: Path, check: int | None = 0, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command; ``check`` is the exit code it must have, ``more`` as for ``start_python``."""
    env = {"NO_COLOR": "1", **more.pop("env", {})}
    done = run_python("-m", "paceline", *arguments, cwd=cwd, env=env, **more)
    assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(*arguments: str, cwd: Path, **more: Any) -> dict:
    """Run the command with --json and read its document; a simulation runs in this process, which is quicker."""
    if arguments[0] != "simulate":
        return json.loads(run_paceline(*arguments, "--json", cwd=cwd, **more).stdout)
    out = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())


@contextlib.contextmanager
def hog() -> Iterator[int]:
    """Something else that computes on this machine; its process id."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()

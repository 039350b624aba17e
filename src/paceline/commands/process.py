"""A command in a process of its own, for a caller in Python: what it prints is passed on, how it ended is raised."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Any

from paceline.commands.train import option_words
from paceline.errors import RunFailed, UsageError
from paceline.runtimes import prctl
from paceline.runtimes.live.failures import killed_by
from paceline.runtimes.live.launcher.launch import paceline_command

FAILED, BAD_USAGE = 1, 2
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)
KEPT = 50
"""Of the last lines on stderr: the last one says what went wrong."""


def run_command(
    words: Sequence[str], *, show: bool, results: bool = True, read: Callable[[str], None] = lambda _: None
) -> int:
    """Run ``paceline WORDS`` to its end and return its exit code, 0 or that of a missed target.

    ``read`` is given each line of its stdout; with ``show`` what it prints appears here as well, its stdout only where
    ``results`` are wanted. A mistake of the user is a UsageError; a run that failed, or that something has killed, is a
    RunFailed. Each Ctrl-C is passed on: at the first one the run saves a checkpoint, the second one ends it at once.
    """
    command = paceline_command(words)
    # In a session of its own it gets Ctrl-C from here alone.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=_environment(),
        start_new_session=True,
        preexec_fn=partial(prctl.die_with_parent, signal.SIGTERM),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    errors = threading.Thread(
        target=_pass_on, args=(process.stderr, sys.stderr if show else None, said.append), daemon=True
    )
    errors.start()
    try:
        _pass_on(process.stdout, sys.stdout if show and results else None, read)
        code = process.wait()
    except BaseException:
        _interrupt(process, process.stdout)
        raise
    finally:
        errors.join()
        process.stdout.close()
        process.stderr.close()
    if code in (FAILED, BAD_USAGE):
        raise (UsageError if code == BAD_USAGE else RunFailed)(_reason(said))
    if code in INTERRUPTED:
        raise KeyboardInterrupt
    if code < 0:
        raise RunFailed(
            f"'paceline {words[0]}' was {killed_by(code)}; if nobody did that, the machine may have run out of memory, "
            "which the kernel's log says (dmesg)"
        )
    return code


def _interrupt(process: "subprocess.Popen[str]", stdout: IO[str]) -> None:
    """Pass Ctrl-C on, and each further one, until the process has ended."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            _pass_on(
                stdout, None, lambda _: None
            )  # which nobody reads: a full pipe would keep it from ending
            process.wait()
            return
        except KeyboardInterrupt:
            continue


def run_json(words: Sequence[str], arguments: Mapping[str, Any], *, show: bool) -> dict[str, Any]:
    """The JSON document of a command with these arguments."""
    lines: list[str] = []
    run_command([*words, *option_words(arguments), "--json"], show=show, results=False, read=lines.append)
    try:
        return dict(json.loads("\n".join(lines)))
    except ValueError:
        raise RunFailed(f"'paceline {' '.join(words)}' gave no result") from None


def _pass_on(stream: IO[str], out: IO[str] | None, read: Callable[[str], object]) -> None:
    for line in stream:
        read(line.rstrip("\n"))
        if out is not None:
            out.write(line)
            out.flush()


def _reason(said: Sequence[str]) -> str:
    """The last paragraph that begins with the command's name, with arguments as Python writes them."""
    last = [*said[-KEPT:]] or ["paceline: it ended without a word"]
    begin = max((at for at, line in enumerate(last) if line.startswith("paceline: ")), default=len(last) - 1)
    text = "\n".join(last[begin:]).removeprefix("paceline: ")
    text = re.sub(r"'paceline ([a-z ]+) --help'", _help, text)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)


def _help(found: re.Match[str]) -> str:
    """Where Python explains what the help of a command does; a task of ``calibrate`` has no function of its own."""
    words = found[1].split()
    name = "_".join(words if words[0] == "bench" else words[:1])
    return f"help(paceline.{name})"


def _environment() -> dict[str, str]:
    """As here, and with what can be imported here, but for what every interpreter has."""
    usual = (sys.prefix, sys.base_prefix)
    own = [entry for entry in sys.path if entry and not entry.startswith(usual)]
    kept = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*own, *kept]))}

"""A process's progress and what it is doing, in a page of memory that outlives it; its stack; and silence.

The stack is written by faulthandler in C when the launcher sends a signal: that needs neither the GIL nor a thread.
"""

import ctypes
import faulthandler
import mmap
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from paceline.errors import is_users
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.timeouts import GLANCE, STACK

_OfStep = Literal["data", "forward", "backward", "exchange", "apply", "evaluate", "checkpoint"]
ProcessPhase = Literal["starting", _OfStep, "script", "finishing", "done", "idle", "serving"]
"""What a process is doing. "exchange" is everything in which it waits for others; a server is "idle" or "serving".

"script" is what a script does between its steps. A process that ends without being "done" has not ended well.
"""

STACK_SIGNAL = signal.SIGRTMIN + 7
_LONGEST_STACK = 2**18
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_PHASES: tuple[ProcessPhase, ...] = get_args(ProcessPhase)
_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}


class _Page(ctypes.Structure):
    """What is in the file. Numbers are aligned, so that a reader never sees half of one."""

    _fields_ = (
        ("step", ctypes.c_int64),
        ("at", ctypes.c_double),
        ("phase", ctypes.c_int64),
        ("since", ctypes.c_double),
        ("run", ctypes.c_char * 4064),
    )

    def progress(self) -> "Progress":
        run = Path(os.fsdecode(self.run)) if self.run else None
        return Progress(step=self.step, at=self.at, phase=_PHASES[self.phase], since=self.since, run=run)


@dataclass(frozen=True, kw_only=True)
class Progress:
    step: int = 0
    at: float = 0.0
    """When the last one ended, in seconds since the epoch; 0 before the first."""
    phase: ProcessPhase = "starting"
    since: float = 0.0
    """When the phase began, by the host's monotonic clock; 0 where nothing was ever written."""
    run: Path | None = None


class Heartbeat:
    def __init__(self, info: ProcessInfo) -> None:
        size = ctypes.sizeof(_Page)
        if info.launch is None:
            memory = mmap.mmap(-1, size)
        else:
            with info.file("beat").open("wb+") as file:
                file.truncate(size)
                memory = mmap.mmap(file.fileno(), size)
        self._page = _Page.from_buffer(memory)
        self.enter("starting")

    def beat(self, step: int) -> None:
        """A step has ended, or a server's update; 0 says that the process is ready to begin."""
        self._page.step, self._page.at = step, time.time()

    def enter(self, phase: ProcessPhase) -> None:
        """A phase begins, or the present one has made progress."""
        self._page.phase, self._page.since = _NUMBERS[phase], time.monotonic()

    def show(self, run: Path) -> None:
        with suppress(ValueError):  # a path that is too long
            self._page.run = os.fsencode(run.absolute())

    def progress(self) -> Progress:
        return self._page.progress()


def read_progress(info: ProcessInfo) -> Progress:
    try:
        return _Page.from_buffer_copy(info.file("beat").read_bytes()).progress()
    except (FileNotFoundError, ValueError):  # not there, or not yet of its size
        return Progress()


class SilenceWatch:
    """Which members on other hosts have been silent for too long, not counting time in which this process hung."""

    def __init__(self, silence: float) -> None:
        self._silence, self._looked, self._counts_from = silence, time.monotonic(), 0.0

    def silent(self, heard: Mapping[int, float]) -> dict[int, float]:
        """For how many seconds each silent member has been so, given when each was last heard of."""
        now = time.monotonic()
        if now - self._looked > self._silence / 2:
            self._counts_from = now
        self._looked = now
        lasted = {member: now - max(at, self._counts_from) for member, at in heard.items()}
        return {member: seconds for member, seconds in lasted.items() if seconds > self._silence}


def write_stack_when_asked(info: ProcessInfo) -> None:
    if info.launch is None:
        return
    path = info.file("stack")
    draft = path.with_suffix(".draft-stack")
    faulthandler.register(STACK_SIGNAL, draft.open("w"), all_threads=True, chain=False)
    draft.rename(path)  # only now: a process that has no handler yet would die of the signal


def ask_for_stack(info: ProcessInfo, pid: int) -> list[str]:
    """The frames of a process's main thread, innermost first, as "file:line in name"; none where it has no handler."""
    path = info.file("stack")
    try:
        before = size = path.stat().st_size
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + STACK
        while time.monotonic() < deadline:  # until it has written, and writes no more
            time.sleep(GLANCE)
            now = path.stat().st_size
            if now == size > before:
                break
            size = now
        with path.open("rb") as file:
            file.seek(before)
            return frames_of(file.read(_LONGEST_STACK).decode(errors="replace"))
    except OSError:
        return []


def frames_of(text: str) -> list[str]:
    """The main thread's frames in what faulthandler wrote: those of the thread that took the signal."""
    threads = re.split(r"^(?=Thread 0x|Current thread 0x)", text, flags=re.MULTILINE)
    current = [one for one in threads if one.startswith("Current")] or threads[-1:]
    return [
        f"{match['file']}:{match['line']} in {match['name']}"
        for match in map(_FRAME.match, current[0].splitlines())
        if match
    ]


def users_frame(frames: list[str]) -> str:
    return next((frame.rpartition("/")[2] for frame in frames if is_users(frame)), "")

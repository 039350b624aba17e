"""The Python stack of a process that stands still: it writes it when its launcher sends a signal.

The handler is faulthandler's, in C: it needs neither the GIL nor a thread that runs.
"""

import faulthandler
import os
import re
import signal
import time
from pathlib import Path

from paceline.errors import is_users
from paceline.runtimes.live.process_info import ProcessInfo, Role, file_stem
from paceline.runtimes.live.timeouts import GLANCE, STACK

SIGNAL = signal.SIGRTMIN + 7
"""A real-time signal that nothing else here uses."""
FRAMES = 8
"""That are shown."""
_LONGEST = 2**18
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def stack_path(launch: Path, rank: int, role: Role) -> Path:
    """Where a process writes its stack; the file is there once it would."""
    return launch / f"{file_stem(rank, role)}.stack"


def write_stack_when_asked(place: ProcessInfo) -> None:
    """From now on, until this process ends, it writes its stack whenever its launcher asks."""
    if place.launch is None:
        return
    path = stack_path(place.launch, place.rank, place.role)
    draft = path.with_suffix(".draft-stack")
    faulthandler.register(SIGNAL, draft.open("w"), all_threads=True, chain=False)
    draft.rename(path)  # only now: a process that does not listen yet would die of the signal


def ask_for_stack(launch: Path, rank: int, role: Role, pid: int) -> list[str]:
    """The frames of a process's main thread, innermost first, as "file:line in name"; nothing where it has none."""
    path = stack_path(launch, rank, role)
    try:
        before = path.stat().st_size
        os.kill(pid, SIGNAL)
        text = _grown(path, before)
    except OSError:
        return []
    return frames_of(text)


def _grown(path: Path, before: int) -> str:
    """What has been written, once no more comes."""
    deadline, size = time.monotonic() + STACK, before
    while time.monotonic() < deadline:
        time.sleep(GLANCE)
        now = path.stat().st_size
        if now == size > before:
            break
        size = now
    with path.open("rb") as file:
        file.seek(before)
        return file.read(_LONGEST).decode(errors="replace")


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
    """The innermost frame of the user's own code, "my_job.py:42 in loss", or nothing."""
    return next((frame.rpartition("/")[2] for frame in frames if is_users(frame)), "")

"""How far a process has come and what it is doing, in a page of memory that outlives it.

A process that is killed or hangs cannot say anything any more. Its last step and its phase are in a small mapped file
in the launch folder, which its launcher reads.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from paceline.runtimes.live.process_info import ProcessInfo, Role, file_stem

Phase = Literal[
    "starting",
    "data",
    "forward",
    "backward",
    "exchange",
    "apply",
    "evaluate",
    "checkpoint",
    "finishing",
    "idle",
    "serving",
]
"""What a process is doing. "exchange" is everything in which it waits for others; a server is "idle" or "serving"."""

_PHASES: tuple[Phase, ...] = get_args(Phase)
_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}
_PAGE = 4096
# Native alignment: each number is written in one piece, so that a reader never sees half of one.
_BEAT = struct.Struct("@qd")
_PHASE = struct.Struct("@qd")
_PATH = struct.Struct("@H")
_PHASE_AT = _BEAT.size
_PATH_AT = _PHASE_AT + _PHASE.size


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What a heartbeat file says."""

    step: int = 0
    """Steps finished; of a server, updates."""
    at: float = 0.0
    """When the last one ended, in seconds since the epoch; 0 before the first."""
    phase: Phase = "starting"
    since: float = 0.0
    """When the phase began, by the host's monotonic clock; 0 where nothing was ever written."""
    run: Path | None = None
    """The run folder, once it is known."""


class Heartbeat:
    """A process's own end of the file; writing costs well under a microsecond and no system call."""

    def __init__(self, place: ProcessInfo) -> None:
        """Without a launch folder, the beats go to memory that only this process sees."""
        if place.launch is None:
            self._map = mmap.mmap(-1, _PAGE)
        else:
            self._map = _open(path_of(place.launch, place.rank, place.role))
        self.enter("starting")

    def beat(self, step: int) -> None:
        """A step has ended, or a server's update; 0 says that one has come so far as to begin."""
        _BEAT.pack_into(self._map, 0, step, time.time())

    def enter(self, phase: Phase) -> None:
        """A phase begins, or the present one has made progress."""
        _PHASE.pack_into(self._map, _PHASE_AT, _NUMBERS[phase], time.monotonic())

    def show(self, run: Path) -> None:
        """The run folder is known."""
        path = os.fsencode(run.absolute())
        if _PATH_AT + _PATH.size + len(path) <= _PAGE:
            self._map[_PATH_AT + _PATH.size : _PATH_AT + _PATH.size + len(path)] = path
            _PATH.pack_into(self._map, _PATH_AT, len(path))

    def pulse(self) -> Pulse:
        """What has been written so far."""
        return _parse(self._map[:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


def path_of(launch: Path, rank: int, role: Role = "worker") -> Path:
    """The heartbeat file of a worker or server."""
    return launch / f"{file_stem(rank, role)}.beat"


def read_pulse(launch: Path, rank: int, role: Role = "worker") -> Pulse:
    """What a worker or server has written, dead or alive; an empty pulse where it never came so far."""
    try:
        return _parse(path_of(launch, rank, role).read_bytes())
    except FileNotFoundError:
        return Pulse()


def _open(path: Path) -> mmap.mmap:
    with path.open("wb+") as file:
        file.truncate(_PAGE)
        return mmap.mmap(file.fileno(), _PAGE)


def _parse(page: bytes) -> Pulse:
    if len(page) < _PAGE:
        return Pulse()
    step, at = _BEAT.unpack_from(page)
    number, since = _PHASE.unpack_from(page, _PHASE_AT)
    (length,) = _PATH.unpack_from(page, _PATH_AT)
    start = _PATH_AT + _PATH.size
    run = Path(os.fsdecode(page[start : start + length])) if length else None
    return Pulse(step=step, at=at, phase=_PHASES[number], since=since, run=run)

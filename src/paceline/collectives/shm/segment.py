"""A piece of memory that several processes of one host map: a file in /dev/shm whose name lives for moments only."""

import mmap
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from paceline.collectives.shm.peers import died

ROOM = Path("/dev/shm")  # noqa: S108  the kernel's own place for it, and files here are created exclusively
PREFIX = "paceline-"
PAGE = mmap.PAGESIZE
STALE = 60.0
"""Seconds after which a name is rubbish whose maker cannot be looked for: sharing a segment takes milliseconds."""


class NoRoom(OSError):
    """The segment cannot be made; the message is a sentence for the user."""


def segment_name(run: str, group: str, serial: int) -> str:
    """A name that says whose segment it is: run, group, number, and the process that makes it.

    Containers may share the room while process ids repeat: hence a random part, and where the id holds.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", f"{run}-{group}")[:120]
    return f"{PREFIX}{plain}-{secrets.token_hex(4)}-{serial}.{process_space()}.{os.getpid()}"


def create(name: str, size: int) -> mmap.mmap:
    """Make a segment that only its owner may open, with all of its memory set aside. ``remove`` its name soon."""
    try:
        file = os.open(ROOM / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NoRoom(f"{ROOM} cannot be used ({error.strerror}), which shared memory needs") from error
    try:
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)
    except OSError as error:
        remove(name)
        raise NoRoom(_no_room(size)) from error
    finally:
        os.close(file)


def attach(name: str, size: int) -> mmap.mmap:
    """Map a segment that another process made."""
    file = os.open(ROOM / name, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def remove(name: str) -> None:
    """Take the name away if it is there; the memory goes with the last process that maps it, however that ends."""
    with suppress(FileNotFoundError):
        if (ROOM / name).exists():  # a room that cannot be written refuses to remove even what is not there
            (ROOM / name).unlink()


def sweep() -> None:
    """Remove names whose makers died before they could: a kill between making a segment and sharing it."""
    for path in ROOM.glob(f"{PREFIX}*"):
        with suppress(ValueError, OSError):
            if path.stat().st_uid == os.getuid() and _abandoned(path):
                path.unlink()


def _abandoned(path: Path) -> bool:
    """Without its maker, no group forms; where that lives among other processes, only the time can tell."""
    _, space, process = path.name.rsplit(".", 2)
    if int(space) == process_space():
        return died(int(process))
    return time.time() - path.stat().st_mtime > STALE


def process_space() -> int:
    """Where a process id holds: the same for all processes that call each other by the same ids."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _no_room(size: int) -> str:
    room = os.statvfs(ROOM)
    free = room.f_bavail * room.f_frsize
    return (
        f"{ROOM} has {free / 1e6:,.0f} MB free and {size / 1e6:,.1f} MB are needed; "
        "give it more (in a container: --shm-size) to use shared memory"
    )

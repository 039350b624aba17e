"""A piece of memory that several processes of one host map: a file in /dev/shm whose name lives for moments only."""

import mmap
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

ROOM = Path("/dev/shm")  # noqa: S108  the kernel's own place for it, and files here are created exclusively
PREFIX = "paceline-"
PAGE = mmap.PAGESIZE
STALE = 60.0
"""Seconds after which the name of a dead maker is rubbish: sharing a segment takes milliseconds."""


class NoRoom(OSError):
    """The segment cannot be made; the message is a sentence for the user."""


def segment_name(run: str, group: str, serial: int) -> str:
    """A name that says whose segment it is: run, group, number, and the process that makes it.

    The random part is for containers that share the room, where process ids repeat.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", f"{run}-{group}")[:120]
    return f"{PREFIX}{plain}-{secrets.token_hex(4)}-{serial}.{os.getpid()}"


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
    """Take the name away; the memory goes with the last process that maps it, however that process ends."""
    with suppress(FileNotFoundError):
        (ROOM / name).unlink()


def sweep() -> None:
    """Remove names whose makers died before they could: a kill between making a segment and sharing it."""
    for path in ROOM.glob(f"{PREFIX}*"):
        with suppress(ValueError, OSError):
            found = path.stat()
            if (
                found.st_uid == os.getuid()
                and time.time() - found.st_mtime > STALE
                and not _alive(int(path.suffix[1:]))
            ):
                path.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _no_room(size: int) -> str:
    room = os.statvfs(ROOM)
    free = room.f_bavail * room.f_frsize
    return (
        f"{ROOM} has {free / 1e6:,.0f} MB free and {size / 1e6:,.1f} MB are needed; "
        "give it more (in a container: --shm-size) to use shared memory"
    )

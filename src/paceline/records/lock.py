"""One owner a run folder: a second process that would train in it is refused, and told who does.

The first process of a node takes the lock alone, says who it is, and then shares it with the other processes of its
run. So the lock is held for as long as any of them lives, and ends with the last, however it ends.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from paceline.errors import RunFailed, UsageError, printable
from paceline.records.folder import RunFolder

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What a file system that has no locks answers: there the folder is used without one."""

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)

_PATIENCE, _GLANCE = 1.0, 0.05
"""Seconds in which the last process of a run that has just ended may go, and how often that is looked at."""

_MOST = 300
"""Characters of a command that are told."""


class RunLock:
    """A share in the lock of one node; a context that gives it back."""

    def __init__(self, folder: RunFolder, node: int, *, only_read: bool = False) -> None:
        self._folder, self._path = folder, folder.lock(node)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except OSError as error:
            if only_read and error.errno in _NOT_WRITABLE:
                # A lock needs no right to write; without a lock file nobody can be training here.
                path = self._path if self._path.exists() else folder.path
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            raise UsageError(
                f"{self._path} cannot be opened ({error.strerror}); see who may write there"
            ) from error

    @classmethod
    def own(cls, folder: RunFolder, node: int, *, only_read: bool = False) -> Self:
        """Become the owner of a folder that nobody uses, or raise a UsageError that says who does.

        One that is ``only_read`` need not be writable.
        """
        lock = cls(folder, node, only_read=only_read)
        lock._take(fcntl.LOCK_EX, patience=_PATIENCE)
        lock._sign()
        # Others may come between the one and the other, and then it is this process that is refused.
        lock._take(fcntl.LOCK_SH)
        return lock

    @classmethod
    def share(cls, folder: RunFolder, node: int) -> Self:
        lock = cls(folder, node)
        lock._take(fcntl.LOCK_SH)
        return lock

    def check(self) -> None:
        """Raise RunFailed if the folder was deleted or replaced since."""
        held = os.fstat(self._descriptor)
        try:
            there = self._path.stat()
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise RunFailed(
                f"the run folder {self._folder.path} was deleted or replaced while the run was using it"
            )

    def close(self) -> None:
        """Give the share back; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, how: int, patience: float = 0.0) -> None:
        deadline = time.monotonic() + patience
        while not self._taken(how):
            if time.monotonic() > deadline:
                holder = _holder(self._path)
                self.close()
                raise UsageError(
                    f"{self._folder.path} is in use: {holder}; wait until that run has ended, or stop it"
                )
            time.sleep(_GLANCE)

    def _taken(self, how: int) -> bool:
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.close()
                raise
        return True

    def _sign(self) -> None:
        """Say who holds it; a disk that is full takes nothing away from the lock."""
        who = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            "command": shlex.join(["paceline", *sys.argv[1:]])[:_MOST],
        }
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(who).encode(), 0)


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_bytes()[:4096])
        pid, host, since, command = (
            printable(str(who[key]), _MOST) for key in ("pid", "host", "since", "command")
        )
    except (OSError, ValueError, LookupError, TypeError):
        return "another process holds its lock"
    return f"process {pid} on {host} has held it since {since} ({command})"

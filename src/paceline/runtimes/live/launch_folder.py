"""The launch folder: heartbeats, notes and the secret of one host's processes, for as long as one of them lives.

Every process that uses it holds a shared lock in it; the one that gets the lock alone is the last, and removes it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from paceline.records.files import read_json, write_json

_PREFIX = "paceline-"
_LOCK = "lock"
_SERVERS = "servers.json"


class LaunchFolder:
    """A launch folder that this process uses: it is not swept meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    def make(cls) -> Self:
        parent = Path(tempfile.gettempdir())
        sweep(parent)
        # Locked before it has its name, so that a process that sweeps meanwhile does not take it for a leftover.
        draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
        made = cls(draft)
        made.path = draft.rename(parent / f"{_PREFIX}{uuid4().hex[:12]}")
        return made

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def remove_if_last(self) -> None:
        """Stop using the folder, and remove it if no other process uses it."""
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)


def sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and (path / _LOCK).is_file():
                LaunchFolder(path).remove_if_last()


def write_servers(launch: Path, endpoints: list[str]) -> None:
    write_json(launch / _SERVERS, endpoints)


def read_servers(launch: Path) -> list[str]:
    return read_json(launch / _SERVERS) if (launch / _SERVERS).exists() else []

"""The run folder: the one class that knows the names of its files, and the lock of its owner."""

import errno
import fcntl
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import psutil

from paceline.errors import RunFailed, UsageError, printable
from paceline.records.files import DamagedFile, read_sealed, sync_folder
from paceline.records.load import usable_cores


@dataclass(unsafe_hash=True)
class RunFolder:
    """``runs/<utc>-<name>-<four random characters>/``, as both runtimes write it and every report reads it."""

    path: Path

    def __post_init__(self) -> None:
        self.config = self.path / "config.json"
        self.env = self.path / "env.json"
        self.metrics = self.path / "metrics.jsonl"
        self.system = self.path / "system.jsonl"
        self.prediction = self.path / "prediction.json"
        """What was expected of a step before the first one, where a codec is in use."""
        self.findings = self.path / "findings.json"
        """What kept the run from being faster, in words, and what is predicted to help."""
        self.summary = self.path / "summary.json"
        self.model = self.path / "model.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.csv = self.path / "csv"
        self.start = self.path / "start.json"
        """What was about to run when the run was last started; live runs only."""
        self.trace = self.path / "trace.json.gz"
        self.join = self.path / "join.json"
        """Where a run with servers can be joined while it goes on."""
        self.join_secret = self.path / "join.secret"
        """What a worker that joins must have; only its user may read it."""

    def event_files(self) -> dict[int, Path]:
        return _numbered(self.path / "events", "rank-", ".jsonl")

    def events(self, rank: int) -> Path:
        return self.path / "events" / f"rank-{rank}.jsonl"

    def server_event_files(self) -> dict[int, Path]:
        return _numbered(self.path / "events", "server-", ".jsonl")

    def server_events(self, rank: int) -> Path:
        return self.path / "events" / f"server-{rank}.jsonl"

    def profile(self, rank: int) -> Path:
        """What the torch profiler saw of one worker in chosen steps."""
        return self.path / "profile" / f"rank-{rank}.json.gz"

    def failure(self, who: str) -> Path:
        return self.path / f"failure-{who}.txt"

    def lock(self, node: int) -> Path:
        return self.path / f"lock-{node}"

    def lock_nodes(self) -> list[int]:
        """The nodes whose processes have used this very folder, on this host or over a shared file system."""
        return list(_numbered(self.path, "lock-"))

    def commits(self, node: int) -> Path:
        return self.checkpoints / f"complete-{node}.json"

    def checkpoint(self, step: int, rank: int, role: str = "rank") -> Path:
        """One worker's part of the checkpoint of a step; with role "server", one server's."""
        return self.checkpoints / f"step-{step:08d}" / f"{role}-{rank}.safetensors"


def _numbered(folder: Path, prefix: str, suffix: str = "") -> dict[int, Path]:
    found = {
        path.name.removeprefix(prefix).removesuffix(suffix): path
        for path in folder.glob(f"{prefix}*{suffix}")
    }
    return {rank: found[str(rank)] for rank in sorted(int(name) for name in found if name.isdecimal())}


_NAME = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9_][A-Za-z0-9._-]{0,39}-[a-z0-9]{4}")

Fill = Callable[[RunFolder], None]


def folder_lost(path: Path) -> str:
    return f"the run folder {path} was deleted or replaced while the run was using it"


def new_folder_name(name: str, utc: datetime) -> str:
    """A name that sorts by time and is unique: ``20261115-184207-digits-x7k2``."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40].rstrip("-.")
    tail = "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(4))
    return f"{utc:%Y%m%d-%H%M%S}-{plain or 'run'}-{tail}"


def name_of_run(folder: str) -> str:
    """What a run was called, from the name of its folder; one that was renamed by hand is its own name."""
    return folder[16:-5] if _NAME.fullmatch(folder) else folder


LATEST, RUNS = Path("latest"), Path("runs")


def find_run(run: Path, parent: Path | None = None) -> RunFolder:
    """The folder of a run; "latest" is the live run below ``parent``, or runs, that was started or resumed last."""
    folder = latest_run(parent or RUNS) if run == LATEST else RunFolder(run)
    if not folder.config.exists():
        raise no_run(folder)
    return folder


def named_path(path: Path) -> Path:
    """What a user means by a path: "latest" is the run in runs that was started or resumed last."""
    return latest_run(RUNS).path if path == LATEST and not path.exists() else path


def latest_run(parent: Path) -> RunFolder:
    for path in sorted(parent.glob("*/config.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(DamagedFile, OSError):
            if read_sealed(path).get("runtime") == "live":
                return RunFolder(path.parent)
    raise UsageError(
        f"{parent} holds no run of 'paceline train' or of a script; name a folder, or the place where runs are"
    )


def short_path(path: str | Path) -> str:
    """As one types it from here."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


def no_run(folder: RunFolder) -> UsageError:
    why = "it holds no config.json" if folder.path.is_dir() else "there is no such folder"
    return UsageError(f"{folder.path} is not the folder of a run: {why}; see what 'ls runs' shows")


def check_folder_name(name: object) -> str:
    """The name of a run folder that another process has sent; anything else is a UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{str(name)[:80]!r} is not the name of a run folder; start every host with this paceline"
        )
    return name


def create(parent: Path, name: str, fill: Fill) -> RunFolder:
    """Make a folder of this name with all that ``fill`` writes, or none; raise FileExistsError where there is one."""
    check_parent(parent)
    draft = parent / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        draft.mkdir(parents=True)
        fill(RunFolder(draft))
        draft.rename(parent / name)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(error.errno, error.strerror, str(parent / name)) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync_folder(parent)
    return RunFolder(parent / name)


def create_new(parent: Path, name: str, fill: Fill) -> RunFolder:
    while True:
        try:
            return create(parent, new_folder_name(name, datetime.now(UTC)), fill)
        except FileExistsError:
            continue


def check_parent(parent: Path) -> None:
    """Refuse a place where no folder can be made: permissions tell too little of /proc, or of a full disk."""
    try:
        there = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
        if there.is_dir():
            try_writing(there)
    except OSError as error:
        raise UsageError(
            f"nothing can be written to {parent} ({error.strerror}); choose another place"
        ) from error
    if not there.is_dir():
        raise UsageError(f"nothing can be written to {parent}: {there} is not a folder; choose another place")


def try_writing(folder: Path) -> None:
    """Make something in a folder and remove it; raise OSError where that cannot be done."""
    Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder)).rmdir()


def check_writable(folder: RunFolder) -> None:
    places = (folder.path, folder.checkpoints, folder.events(0).parent, folder.metrics)
    for path in (path for path in places if path.exists()):
        if not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
            raise UsageError(
                f"{folder.path} cannot be resumed: {path} is read-only, and a run goes on in its folder; "
                "make it writable, or resume a copy of the folder"
            )


def environment() -> dict[str, Any]:
    """Versions and the machine, for ``env.json``; nothing secret, and no environment variable."""
    file = Path("/proc/cpuinfo")
    cpu = re.search(r"^model name\s*: (.+)$", file.read_text() if file.exists() else "", re.MULTILINE)
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What a file system that has no locks answers: there the folder is used without one."""

_LOCK_TIMEOUT, _LOCK_INTERVAL = 1.0, 0.05
"""Seconds to wait for the last process of a run that has just ended, and between two attempts."""


def is_locked(folder: RunFolder) -> bool | None:
    """Whether a process of this host holds a lock of the folder, without touching it; None where none can tell."""
    try:
        held = {word for line in Path("/proc/locks").read_text().splitlines() for word in line.split()}
        files = [folder.lock(node).stat() for node in folder.lock_nodes()]
    except OSError:
        return None
    return any(f"{os.major(one.st_dev):02x}:{os.minor(one.st_dev):02x}:{one.st_ino}" in held for one in files)


class RunLock:
    """A share in the lock of one node; a context that gives it back.

    The first process of a node takes the lock alone, signs it, and then shares it with the other processes of its run.
    So the lock is held for as long as any of them lives, and ends with the last, however it ends.
    """

    def __init__(self, folder: RunFolder, node: int, *, only_read: bool = False) -> None:
        self._folder, self._path = folder, folder.lock(node)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except OSError as error:
            if only_read and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                # A lock needs no right to write; without a lock file no process can be training here.
                path = self._path if self._path.exists() else folder.path
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            raise UsageError(
                f"{self._path} cannot be opened ({error.strerror}); check its permissions"
            ) from error

    @classmethod
    def own(cls, folder: RunFolder, node: int, *, only_read: bool = False) -> Self:
        """Become the owner of a folder, or raise a UsageError that names the owner; with ``only_read`` on any disk."""
        lock = cls(folder, node, only_read=only_read)
        lock._take(fcntl.LOCK_EX, timeout=_LOCK_TIMEOUT)
        lock._sign()
        # Another process may take it in between, and then this one is refused.
        lock._take(fcntl.LOCK_SH)
        return lock

    @classmethod
    def share(cls, folder: RunFolder, node: int) -> Self:
        lock = cls(folder, node)
        lock._take(fcntl.LOCK_SH)
        return lock

    def check(self) -> None:
        """Raise RunFailed if the folder was deleted or replaced since."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                return
        raise RunFailed(folder_lost(self._folder.path))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, how: int, timeout: float = 0.0) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.close()
                    used = f"{self._folder.path} is in use: {self._holder()}"
                    raise UsageError(f"{used}; wait until that run has ended, or stop it") from None
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return None
                self.close()
                raise
            time.sleep(_LOCK_INTERVAL)

    def _sign(self) -> None:
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        who = f"process {os.getpid()} on {socket.gethostname()} has held it since {since}"
        with suppress(OSError):  # a full disk
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{who} ({shlex.join(['paceline', *sys.argv[1:]])})".encode(), 0)

    def _holder(self) -> str:
        with suppress(OSError):
            return printable(self._path.read_text(errors="replace"), 400) or "another process holds its lock"
        return "another process holds its lock"

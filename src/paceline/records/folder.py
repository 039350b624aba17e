"""The run folder: the one class that knows the names of its files."""

import os
import platform
import re
import secrets
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from errno import EEXIST, ENOTEMPTY
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import UsageError
from paceline.records.files import sync_folder
from paceline.records.load import usable_cores


@dataclass(unsafe_hash=True)
class RunFolder:
    """``runs/<utc>-<name>-<four random characters>/``, as both runtimes write it and every report reads it."""

    path: Path

    def __post_init__(self) -> None:
        self.config = self.path / "config.json"
        """The resolved settings."""
        self.env = self.path / "env.json"
        """Versions and the machine."""
        self.metrics = self.path / "metrics.jsonl"
        self.system = self.path / "system.jsonl"
        """CPU, memory and network, about once a second."""
        self.summary = self.path / "summary.json"
        self.model = self.path / "model.safetensors"
        """The central model, exported at the end."""
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.trace = self.path / "trace.json.gz"
        """Every worker's spans for Perfetto and Chrome."""
        self.join = self.path / "join.json"
        """Where a run with servers can be joined while it goes on."""
        self.join_secret = self.path / "join.secret"
        """What a worker that joins must have; only its user may read it."""

    def event_files(self) -> dict[int, Path]:
        return _numbered(self.path / "events", "rank-")

    def events(self, rank: int) -> Path:
        return self.path / "events" / f"rank-{rank}.jsonl"

    def server_event_files(self) -> dict[int, Path]:
        return _numbered(self.path / "events", "server-")

    def server_events(self, rank: int) -> Path:
        return self.path / "events" / f"server-{rank}.jsonl"

    def failure(self, who: str) -> Path:
        """The traceback of a worker or server that failed: of "rank-1", or "server-0"."""
        return self.path / f"failure-{who}.txt"

    def lock(self, node: int) -> Path:
        """What the processes of one node hold while they use the folder."""
        return self.path / f"lock-{node}"

    def lock_nodes(self) -> list[int]:
        """The nodes whose processes have used this very folder, on this host or over a shared file system."""
        names = (path.name.removeprefix("lock-") for path in self.path.glob("lock-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def commits(self, node: int) -> Path:
        """The steps that every worker and server has saved, as one node knows it."""
        return self.checkpoints / f"complete-{node}.json"

    def checkpoint(self, step: int, rank: int, role: str = "rank") -> Path:
        """One worker's part of the checkpoint of a step; with role "server", one server's."""
        return self.checkpoints / f"step-{step:08d}" / f"{role}-{rank}.safetensors"


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """The files ``<prefix>N.jsonl`` of a folder by N, in order."""
    names = {path.stem.removeprefix(prefix): path for path in folder.glob(f"{prefix}*.jsonl")}
    return {rank: names[str(rank)] for rank in sorted(int(name) for name in names if name.isdecimal())}


_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_NAME = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9_][A-Za-z0-9._-]{0,39}-[a-z0-9]{4}")

Fill = Callable[[RunFolder], None]
"""Writes what a new run folder holds from its first moment on."""


def new_folder_name(name: str, utc: datetime) -> str:
    """Sorts by time, says what ran and is like no other: ``20261115-184207-digits-x7k2``."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40].rstrip("-.")
    tail = "".join(secrets.choice(_LETTERS) for _ in range(4))
    return f"{utc:%Y%m%d-%H%M%S}-{plain or 'run'}-{tail}"


def name_of_run(folder: str) -> str:
    """What a run was called, from the name of its folder; one that was renamed by hand is its own name."""
    return folder[16:-5] if _NAME.fullmatch(folder) else folder


def check_folder_name(name: object) -> str:
    """The name of a run folder that another process has told; anything else is a UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{str(name)[:80]!r} is not the name of a run folder; start every host with this paceline"
        )
    return name


def create(parent: Path, name: str, fill: Fill) -> RunFolder:
    """Make a folder of this name, which is there with all that ``fill`` writes or not at all.

    Raises FileExistsError where there is one already: it stays as it is.
    """
    check_parent(parent)
    draft = parent / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"the folder {parent} for runs cannot be made ({error.strerror}); choose another"
        ) from error
    try:
        fill(RunFolder(draft))
        draft.rename(parent / name)
    except OSError as error:
        if error.errno in (EEXIST, ENOTEMPTY):
            raise FileExistsError(error.errno, error.strerror, str(parent / name)) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync_folder(parent)
    return RunFolder(parent / name)


def create_new(parent: Path, name: str, utc: datetime, fill: Fill) -> RunFolder:
    while True:
        try:
            return create(parent, new_folder_name(name, utc), fill)
        except FileExistsError:
            continue


def check_parent(parent: Path) -> None:
    """Raise a UsageError where no run folder can be made; nothing is written."""
    there = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"runs cannot be kept in {parent}: {there} is not a folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(
            f"runs cannot be kept in {parent}: nothing can be written to {there}; choose another place"
        )


def check_writable(folder: RunFolder) -> None:
    """Raise a UsageError where a run cannot go on in its folder; nothing is written."""
    places = (folder.path, folder.checkpoints, folder.events(0).parent, folder.metrics)
    for path in (path for path in places if path.exists()):
        if not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
            raise UsageError(
                f"{folder.path} cannot be resumed: {path} is read-only, and a run goes on in its folder; "
                "make it writable, or resume a copy of the folder"
            )


def environment() -> dict[str, Any]:
    """Versions and the machine, for ``env.json``; nothing secret, and no environment variable."""
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())

"""A new run folder, and what is known about the machine it is made on."""

import os
import platform
import re
import socket
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import Mistake
from paceline.records.folder import RunFolder


def new_folder_name(name: str, utc: datetime) -> str:
    """Sorts by time and says what ran: ``20261115-184207-digits``."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40].rstrip("-.")
    return f"{utc:%Y%m%d-%H%M%S}-{plain or 'run'}"


def create(parent: Path, name: str, utc: datetime) -> RunFolder:
    """Make a folder that nobody else has: a second one of the same second and name ends in ``-2``."""
    check_parent(parent)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--runs {parent} cannot be made ({error.strerror}); choose another place") from error
    wanted = new_folder_name(name, utc)
    number = 1
    while True:
        path = parent / (wanted if number == 1 else f"{wanted}-{number}")
        try:
            path.mkdir()
            return RunFolder(path)
        except FileExistsError:
            number += 1


def check_parent(parent: Path) -> None:
    """Raise a Mistake where no run folder can be made; nothing is written."""
    there = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
    if not there.is_dir():
        raise Mistake(f"--runs {parent}: {there} is not a folder; choose another place with --runs")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Mistake(f"--runs {parent}: nothing can be written to {there}; choose another place with --runs")


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
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
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

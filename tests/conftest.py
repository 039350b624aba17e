"""What tests share: the command as a user runs it, and a check that it leaves nothing behind."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from paceline.cli.main import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several tests share two cores; and one thread makes sums repeatable."""
    torch.set_num_threads(1)


def run_paceline(*arguments: str, cwd: Path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the command; ``check`` is the exit code it must have."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(*arguments: str, cwd: Path) -> dict:
    """Run the command with --json and read its document; a simulation runs in this process, which is quicker."""
    if arguments[0] != "simulate":
        return json.loads(run_paceline(*arguments, "--json", cwd=cwd).stdout)
    out = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Fail a test that leaves a process of its own behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE], "processes left behind"

"""Ranks of scripts, as torchrun starts them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from command import PIPES, start_python
from ports import free_ports

IN_TURN = str(Path(__file__).parent / "in_turn.py")

Start = Callable[..., "subprocess.Popen[str]"]
"""Starts ``python *words``."""


def start_interpreter(*words: str, cwd: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    """In place of ``start_python``, where a fork of the tests will not do."""
    return subprocess.Popen([sys.executable, *words], cwd=cwd, env={**os.environ, **env}, text=True, **PIPES)


def start_ranks(
    *words: str, cwd: Path, workers: int = 2, seconds: float = 60, start: Start = start_python
) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    port = str(free_ports(1)[0])
    common = {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        start(
            *words,
            cwd=cwd,
            env={**common, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
        )
        for rank in map(str, range(workers))
    ]
    told: list[tuple[str, str]] = []
    try:
        for one in ranks:
            told.append(one.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:  # of a rank that waits, what the others said tells why
        for one in ranks:
            one.kill()
        told += [one.communicate() for one in ranks[len(told) :]]
    return [(one.returncode, out, err) for one, (out, err) in zip(ranks, told, strict=True)]


def run_ranks(*words: str, cwd: Path, workers: int = 2, start: Start = start_python) -> list[str]:
    """What each wrote to stdout; all must succeed."""
    done = start_ranks(*words, cwd=cwd, workers=workers, start=start)
    assert [code for code, _, _ in done] == [0] * workers, done
    return [out for _, out, _ in done]


def run_in_turn(scripts: Sequence[str], cwd: Path, workers: int = 2) -> list[list[str]]:
    """Run several scripts in the same ranks; what each script wrote, on each rank."""
    shown = run_ranks(
        IN_TURN, ",".join(map(str, free_ports(len(scripts)))), *scripts, cwd=cwd, workers=workers
    )
    return [[part.partition("\n")[2] for part in out.split("~~~ ")[1:]] for out in shown]

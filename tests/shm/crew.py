"""Ranks as forked processes: the script that forks them imports torch once, and a rank starts in milliseconds."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import paceline.shm
from command import run_python
from ports import free_ports

Work = Callable[[int], Any]
RUN = f"test{os.getpid()}"
"""What the segments of this script are named after."""


class Crew:
    """Processes that each do ``work(rank)``; their results, errors and times are collected."""

    def __init__(self, work: Work, ranks: int) -> None:
        self.processes: list[int] = []
        self._pipes: list[int] = []
        for rank in range(ranks):
            inward, outward = os.pipe()
            process = os.fork()
            if process == 0:
                _live(work, rank, outward)
            os.close(outward)
            self.processes.append(process)
            self._pipes.append(inward)

    def kill(self, *ranks: int, by: int = signal.SIGKILL) -> None:
        for rank in ranks:
            os.kill(self.processes[rank], by)

    def results(self, seconds: float = 20.0) -> list[dict[str, Any]]:
        """What became of each rank: ``value`` or ``error`` and ``text``, and ``at``; ended if it takes too long."""
        begun = time.monotonic()
        texts = [b"" for _ in self._pipes]
        open_pipes = set(self._pipes)
        while open_pipes and (left := begun + seconds - time.monotonic()) > 0:
            for pipe in select.select(list(open_pipes), [], [], left)[0]:
                if chunk := os.read(pipe, 2**16):
                    texts[self._pipes.index(pipe)] += chunk
                else:
                    open_pipes.remove(pipe)
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if pipe in open_pipes:
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(pipe)
        nothing = {
            "error": "nothing",
            "text": "it said nothing: killed, or still at it when the time was over",
        }
        return [json.loads(text) if text else nothing for text in texts]


def _live(work: Work, rank: int, pipe: int) -> None:
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    try:
        told["value"] = work(rank)
    except BaseException as error:
        told.update(error=type(error).__name__, text=str(error), trace=traceback.format_exc())
    told["at"] = time.monotonic()
    with os.fdopen(pipe, "w") as stream:
        json.dump(told, stream)
    sys.stderr.flush()
    os._exit(0)


def crew_of(work: Work, ranks: int, seconds: float = 20.0) -> list[dict[str, Any]]:
    """Start, wait, and collect."""
    return Crew(work, ranks).results(seconds)


def free_port() -> int:
    return free_ports(1)[0]


def world(rank: int, size: int, port: int, backend: str = "shm", seconds: float = 20.0) -> None:
    """Join a group of everybody."""
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
        pg_options=paceline.shm.Options(run=RUN) if "shm" in backend else None,
    )


def in_dev_shm() -> list[str]:
    """What shared memory of this script has names in a folder."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"paceline-*{RUN}*"))


def mapped_memory() -> list[str]:
    """What this process calls the shared memory that it maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if "paceline-" in line and line.split()[1][3] == "s"]


def attempt(cases: Iterable[tuple[str, Callable[[], None]]]) -> dict[str, str]:
    """Go through the cases; what went wrong, by name. A failure is the last case: ranks would differ after it."""
    for name, case in cases:
        try:
            case()
        except BaseException:
            return {name: traceback.format_exc(limit=-4)}
    return {}


def run_script(
    script: str, out: Path, *, before: Iterable[str] = (), seconds: float = 100.0
) -> dict[str, Any]:
    """Run a scenario script, which writes ``facts.json``, from a test; ``before`` are words before the command."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [*before, sys.executable, "-W", "ignore::FutureWarning", str(here / script), str(out)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=seconds
    )
    return _facts(done, out)


def fork_script(script: str, out: Path) -> dict[str, Any]:
    """The same as a fork, which has torch already: for scripts in which no rank is killed or interrupted."""
    quiet = partial(warnings.simplefilter, "ignore", FutureWarning)
    return _facts(run_python(str(Path(__file__).with_name(script)), str(out), first=quiet), out)


def _facts(done: "subprocess.CompletedProcess[str]", out: Path) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads((out / "facts.json").read_text()), "stderr": done.stderr}


def write_facts(facts: dict[str, Any]) -> None:
    (Path(sys.argv[1]) / "facts.json").write_text(json.dumps(facts))

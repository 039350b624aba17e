"""How long `paceline train` takes from its start to the first step of all workers, and the memory of all processes.

Both ways of starting processes in one run, interleaved: forked from one process that has imported torch, and afresh.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from paceline.runtimes.live.heartbeat import read_progress
from paceline.runtimes.live.process_info import ProcessInfo

FORKED = "from paceline.cli.main import main; main()"
AFRESH = (
    "import paceline.runtimes.live.launcher.forking as forking; forking.may_fork = lambda: False; " + FORKED
)
PROGRAMS = {"forked": FORKED, "afresh": AFRESH}


def measure(program: str, workers: int, strategy: str) -> tuple[float, float]:
    """Seconds until every worker has finished a step, and the bytes of all processes then."""
    with tempfile.TemporaryDirectory(prefix="start-time-") as home:
        words = ["train", "-np", str(workers), "--strategy", strategy, "-b", "8", "--runs", f"{home}/runs"]
        command = [sys.executable, "-c", program, *words, "--epochs", "100000", "--evaluate-every", "never"]
        begun = time.time()
        process = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while not all_stepped(Path(home), workers):
                assert process.poll() is None, f"{' '.join(words)} ended with exit code {process.returncode}"
                time.sleep(0.005)
            return time.time() - begun, proportional_bytes(process.pid)
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def all_stepped(home: Path, workers: int) -> bool:
    folder = next(home.glob("paceline-*"), None)
    infos = [ProcessInfo(rank=rank, workers=workers, launch=folder) for rank in range(workers)]
    return folder is not None and all(read_progress(info).step for info in infos)


def proportional_bytes(pid: int) -> float:
    """The memory of a process and all that it has started, a page that n processes share counted as 1/n each."""
    launcher = psutil.Process(pid)
    return sum(one.memory_full_info().pss for one in [launcher, *launcher.children(recursive=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--strategies", nargs="+", default=["all-reduce", "ssp"])
    parser.add_argument("--ways", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells = [
        (way, workers, one)
        for workers in options.workers
        for one in options.strategies
        for way in options.ways
    ]
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {cell: [] for cell in cells}
    measure(FORKED, 2, options.strategies[0])  # the disk's cache is warm from here on
    for _ in range(options.repeats):
        for cell in cells:
            found[cell].append(measure(PROGRAMS[cell[0]], *cell[1:]))
    rows = [row(cell, found[cell]) for cell in cells]
    if options.json:
        print(json.dumps({"schema": 1, "cores": os.cpu_count(), "repeats": options.repeats, "rows": rows}))
        return
    print(
        f"{os.cpu_count()} cores; {options.repeats} repeats, interleaved; seconds to the first step of all workers"
    )
    print(
        f"{'started':<9}{'workers':>8}  {'strategy':<12}{'median s':>9}{'low':>7}{'high':>7}{'GB in all':>11}"
    )
    for one in rows:
        print(
            f"{one['started']:<9}{one['workers']:>8}  {one['strategy']:<12}{one['median']:>9.2f}{one['low']:>7.2f}"
            f"{one['high']:>7.2f}{one['bytes'] / 1e9:>11.2f}"
        )


def row(cell: tuple[str, int, str], measured: list[tuple[float, float]]) -> dict[str, Any]:
    seconds = [one for one, _ in measured]
    return {
        "started": cell[0],
        "workers": cell[1],
        "strategy": cell[2],
        "median": statistics.median(seconds),
        "low": min(seconds),
        "high": max(seconds),
        "bytes": statistics.median(size for _, size in measured),
    }


if __name__ == "__main__":
    main()

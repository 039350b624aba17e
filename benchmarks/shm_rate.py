"""All-reduce through shared memory, in place and on tensors that live elsewhere, against Gloo on loopback.

All sides run in the same processes, one thread each, in turns. Back to back, every call starts after a barrier and a
rank's time is its own; what counts is the slowest rank's, and of the rounds the median. Apart, something else comes
before every call, as in a training loop: a barrier of Gloo, or 5 ms of computing. Ranks do not end that at the same
time, and that is not what is measured: a call takes from when the last rank makes it to when the last has its result.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import paceline.shm
from _ports import free_ports

SIZES = (1_000, 100_000, 1_000_000, 10_000_000, 25_000_000, 100_000_000)
LEAST: dict[tuple[int, str], dict[int, float]] = {
    (2, "in place"): {1_000: 5, 1_000_000: 5, 10_000_000: 5, 100_000_000: 5},
    (2, "elsewhere"): {1_000: 5, 100_000: 5, 1_000_000: 5, 10_000_000: 3, 25_000_000: 3, 100_000_000: 2.5},
    (4, "in place"): {1_000: 4, 1_000_000: 4, 10_000_000: 4, 100_000_000: 4},
}
"""How many times as fast as Gloo, by processes and kind and by bytes."""
APART_SIZES = (1_000, 100_000, 1_000_000)
LEAST_APART = {1_000: 5.0, 1_000_000: 5.0}
"""The same by bytes where calls are apart, 2 processes, tensors elsewhere."""
CALLS_APART = 24
COMPUTING = 5e-3
"""Seconds of computing before a call."""


def timed(work: Callable[[], object], align: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        align()
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return times


def compute() -> None:
    """Multiply matrices for a while, as a layer does."""
    left, right = torch.ones(64, 64), torch.ones(64, 64)
    result, end = torch.empty(64, 64), time.perf_counter() + COMPUTING
    while time.perf_counter() < end:
        torch.mm(left, right, out=result)


def worker(rank: int, processes: int, port: int, rounds: int, mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("shm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    (work_apart if mode == "apart" else work_back_to_back)(rank, processes, rounds)
    dist.destroy_process_group()


def work_apart(rank: int, processes: int, rounds: int) -> None:
    """Both sides after the same, in turns; the clock is that of the host, which both processes read."""
    gloo, aligning = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    preludes: dict[str, Callable[[], object]] = {
        "shm barrier": dist.barrier,
        "gloo barrier": lambda: dist.barrier(group=aligning),
        "5 ms computing": compute,
    }
    for size in APART_SIZES:
        tensor = torch.zeros(size // 4)
        sides: dict[str, dist.ProcessGroup | None] = {"gloo": gloo, "shm": None}
        for prelude, before in preludes.items():
            found: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(-1, rounds):  # the first one is for warming up
                for name in list(sides)[:: 1 if turn % 2 else -1]:
                    seconds = spans(lambda: dist.all_reduce(tensor, group=sides[name]), before)  # noqa: B023
                    if turn >= 0:
                        found[name].append(seconds)
            if rank == 0:
                print(json.dumps({"bytes": size, "kind": f"after {prelude}", **found}), flush=True)
        check(rank, processes, tensor)


def spans(work: Callable[[], object], before: Callable[[], object]) -> float:
    """Return the median of the seconds from when the last rank begins to when the last ends."""
    begun, ended = (torch.empty(CALLS_APART, dtype=torch.float64) for _ in range(2))
    for call in range(CALLS_APART):
        before()
        begun[call] = time.perf_counter()
        work()
        ended[call] = time.perf_counter()
    for times in (begun, ended):
        dist.all_reduce(times, dist.ReduceOp.MAX)
    return float((ended - begun).median())


def work_back_to_back(rank: int, processes: int, rounds: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for size in SIZES:
        here, there = paceline.shm.zeros(size // 4), torch.zeros(size // 4)
        sides: dict[str, Callable[[], object]] = {
            "gloo": lambda: dist.all_reduce(there, group=gloo),  # noqa: B023
            "in place": lambda: dist.all_reduce(here),  # noqa: B023
            "elsewhere": lambda: dist.all_reduce(there),  # noqa: B023
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        repeats = max(2, min(60, 20_000_000 // size))
        for work in sides.values():
            timed(work, dist.barrier, 2)
        for turn in range(rounds):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                times = torch.tensor(timed(sides[name], dist.barrier, repeats))
                dist.all_reduce(times, dist.ReduceOp.MAX)
                found[name].append(times.median().item())
        check(rank, processes, here, there)
        if rank == 0:
            print(json.dumps({"bytes": size, **found}), flush=True)


def check(rank: int, processes: int, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert tensor.eq(processes * (processes + 1) / 2).all()


def measure(processes: int, rounds: int, mode: str) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--processes", str(processes), "--rounds", str(rounds)]
    command += ["--port", str(free_ports(1)[0]), "--only", mode]
    others = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(1, processes)]
    found = subprocess.run([*command, "--rank", "0"], stdout=subprocess.PIPE, text=True, check=True)
    assert not any(other.wait() for other in others)
    rows = []
    for line in found.stdout.splitlines():
        times = json.loads(line)
        size = times["bytes"]
        if mode == "apart":
            rows.append(
                judge(processes, size, times["kind"], times["gloo"], times["shm"], LEAST_APART.get(size))
            )
            continue
        for kind in ("in place", "elsewhere"):
            least = LEAST.get((processes, kind), {}).get(size)
            rows.append(judge(processes, size, kind, times["gloo"], times[kind], least))
    return rows


def judge(
    processes: int, size: int, kind: str, gloo: list[float], shm: list[float], least: float | None
) -> dict[str, Any]:
    ratios = [theirs / mine for theirs, mine in zip(gloo, shm, strict=True)]
    return {
        "processes": processes,
        "bytes": size,
        "kind": kind,
        "gloo_ms": 1e3 * statistics.median(gloo),
        "shm_ms": 1e3 * statistics.median(shm),
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "least": least,
        "met": least is None or statistics.median(ratios) >= least,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'processes':>9}{'bytes':>13}  {'tensors':20}{'gloo ms':>9}{'shm ms':>9}{'ratio':>7}"
        f"{'low':>7}{'high':>7}{'least':>7}"
    )
    for row in rows:
        low, high = row["ratio_spread"]
        least = f"{row['least']:>7g}  {'met' if row['met'] else 'MISSED'}" if row["least"] else ""
        print(
            f"{row['processes']:>9}{row['bytes']:>13,}  {row['kind']:20}{row['gloo_ms']:>9.3f}{row['shm_ms']:>9.3f}"
            f"{row['ratio']:>7.1f}{low:>7.1f}{high:>7.1f}{least}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, action="append", help="2 and 4 by default")
    parser.add_argument("--only", choices=("back to back", "apart"), help="both by default; apart is for 2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        worker(options.rank, options.processes[0], options.port, options.rounds, options.only)
        return 0
    cases = [(processes, "back to back") for processes in options.processes or (2, 4)] + [(2, "apart")]
    rows = [
        row
        for processes, mode in cases
        if options.only in (None, mode)
        for row in measure(processes, options.rounds, mode)
    ]
    if options.json:
        print(json.dumps({"schema": 1, "rounds": options.rounds, "threads": 1, "rows": rows}, indent=2))
    else:
        print(f"all-reduce of float32, {options.rounds} rounds in turns, 1 thread per process")
        show(rows)
    return 0 if all(row["met"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())

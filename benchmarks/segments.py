"""Schedules over Gloo, cut into 1 to 16 segments, beside Gloo's own all-reduce; and what the checked call costs more.

Alone it starts all ranks on loopback. For other links, start each rank on its host with --rank and --address.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from _ports import free_ports
from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.execute import Execution, TorchTransport, all_reduce, plan_rank
from paceline.collectives.schedule import pipelined
from paceline.shm.operations import OPERATIONS

SEGMENTS = (1, 2, 4, 8, 16)


def segmented(name: str, segments: int, tensor: torch.Tensor) -> Callable[[], object]:
    schedule = pipelined(build_schedule(name, [0] * dist.get_world_size()), segments)
    mine = plan_rank(schedule, dist.get_rank(), len(tensor))
    scratch = tensor.new_empty(2 * mine.scratch)
    return lambda: Execution(mine, tensor, scratch, TorchTransport()).run(OPERATIONS["sum"])


def candidates(names: list[str], tensor: torch.Tensor) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {"native": partial(dist.all_reduce, tensor)}
    for name in names:
        found |= {f"{name} {segments}": segmented(name, segments, tensor) for segments in SEGMENTS}
        found[f"{name} checked"] = partial(all_reduce, tensor, name)
    return found


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return 1e3 * (time.perf_counter() - begun) / repeats


def measure(names: list[str], size: int, rounds: int) -> list[dict[str, object]]:
    """Every candidate in turns, so that a busy moment falls on all of them."""
    tensor = torch.zeros(size // 4)
    works = candidates(names, tensor)
    repeats = max(1, min(50, 20_000_000 // size))
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(milliseconds(work, repeats))
    chosen = {name: build_schedule(name, [0] * dist.get_world_size()).segments(size) for name in names}
    return [
        {
            "bytes": size,
            "way": way,
            "chosen_segments": chosen.get(way.split()[0]),
            "ms": statistics.median(found),
            "low": min(found),
            "high": max(found),
        }
        for way, found in times.items()
    ]


def rank_of(options: argparse.Namespace, rank: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    where = f"tcp://{options.address}:{options.port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=options.workers)
    rows = [row for size in options.sizes for row in measure(options.schedules, size, options.rounds)]
    dist.barrier()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 1_000_000, 10_000_000, 40_000_000])
    parser.add_argument("--schedules", nargs="+", default=["ring", "tree"], choices=list(SCHEDULES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank:
        rank_of(options, options.rank)
        os._exit(0)
    others = []
    if options.rank is None:
        options.port = free_ports(1)[0]
        command = [sys.executable, *sys.argv, "--port", str(options.port), "--rank"]
        others = [subprocess.Popen([*command, str(rank)]) for rank in range(1, options.workers)]
    rows = rank_of(options, 0)
    for other in others:
        other.wait()
    if options.json:
        print(json.dumps({"schema": 1, "workers": options.workers, "rounds": options.rounds, "rows": rows}))
        return
    print(f"{options.workers} ranks, 1 thread each, median of {options.rounds} rounds in turns")
    print(f"{'bytes':>12}  {'way':<28}{'ms':>10}{'low':>10}{'high':>10}")
    for row in rows:
        print(
            f"{row['bytes']:>12,}  {row['way']:<28}{row['ms']:>10.3f}{row['low']:>10.3f}{row['high']:>10.3f}"
        )


if __name__ == "__main__":
    main()

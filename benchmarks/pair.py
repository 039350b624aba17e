"""Two processes on loopback: a swap and an addition, against Gloo's own all-reduce, for sizes around the limit."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from _ports import free_ports
from paceline.collectives.traffic import LARGEST_SWAP

SIZES = (1_000, 80_000, 250_000, 1_000_000, 4_000_000, 45_000_000)


def milliseconds(work: Callable[[], object], size: int) -> float:
    repeats = max(5, min(200, 40_000_000 // size))
    work()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return 1e3 * (time.perf_counter() - begun) / repeats


def swap(tensor: torch.Tensor, rank: int) -> None:
    other = torch.empty_like(tensor)
    sending = dist.isend(tensor, 1 - rank)
    dist.recv(other, 1 - rank)
    assert sending is not None
    sending.wait()
    tensor.add_(other)


def worker(rank: int, port: int, rounds: int) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = []
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        swaps, sums = [], []
        for _ in range(rounds):
            swaps.append(milliseconds(lambda: swap(tensor, rank), size))  # noqa: B023
            sums.append(milliseconds(lambda: dist.all_reduce(tensor), size))  # noqa: B023
        ratios = [one / other for one, other in zip(sums, swaps, strict=True)]
        rows.append(
            {
                "bytes": size,
                "swap_ms": statistics.median(swaps),
                "all_reduce_ms": statistics.median(sums),
                "ratio": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        worker(options.rank, options.port, options.rounds)
        os._exit(0)
    (port,) = free_ports(1)
    command = [sys.executable, __file__, "--rank", "1", "--port", str(port), "--rounds", str(options.rounds)]
    with subprocess.Popen(command) as other:
        rows = worker(0, port, options.rounds)
        other.wait()
    if options.json:
        print(json.dumps({"schema": 1, "rounds": options.rounds, "limit_bytes": LARGEST_SWAP, "rows": rows}))
        return
    print(
        f"2 processes, 1 thread each, {options.rounds} rounds in turns; a pair swaps up to {LARGEST_SWAP:,} bytes"
    )
    print(f"{'bytes':>12}{'swap ms':>10}{'all-reduce ms':>15}{'ratio':>8}{'low':>8}{'high':>8}")
    for row in rows:
        print(
            f"{row['bytes']:>12,}{row['swap_ms']:>10.3f}{row['all_reduce_ms']:>15.3f}"
            f"{row['ratio']:>8.2f}{row['low']:>8.2f}{row['high']:>8.2f}"
        )


if __name__ == "__main__":
    main()

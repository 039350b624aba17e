"""Whether contention depends on what is computed: kernels of several kinds in one process, and in two at once.

In each round every kernel has three turns that follow each other: one worker, the other worker, both. A factor is the
seconds of a call with both at it over those of the same worker alone; shown are the median over rounds and workers, and
their quartiles. No limit: it says what a model of contention has to explain on this machine.
"""

import argparse
import json
import queue
import sys
import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Any

import torch
from torch import multiprocessing as mp

WORKERS = 2
PATIENCE = 120.0
Call = Callable[[], object]


def kernels() -> Mapping[str, Call]:
    torch.manual_seed(0)
    square, wide = torch.randn(256, 256), torch.randn(784, 512)
    rows, images = torch.randn(32, 784), torch.randn(32, 16, 28, 28)
    weights = torch.randn(32, 16, 3, 3)
    adds: dict[str, Call] = {}
    for name, elements in (("0.8 MB", 100_000), ("8 MB", 1_000_000), ("240 MB", 30_000_000)):
        one, two = torch.randn(elements), torch.randn(elements)
        adds[f"addition, {name}"] = lambda one=one, two=two: one.add_(two)  # type: ignore[misc]
    return {
        "matrix product, 256": lambda: torch.mm(square, square),
        "matrix product, 32 x 784 x 512": lambda: torch.mm(rows, wide),
        "convolution, 32 x 16 x 28 x 28": lambda: torch.conv2d(images, weights, padding=1),
        **adds,
        "zeros, 8 MB": lambda: torch.zeros(2_000_000),
        "Python alone": lambda: sum(range(2000)),
    }


def turn(call: Call, seconds: float) -> float:
    calls, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        call()
        calls += 1
    return (time.perf_counter() - begun) / calls


def work(rank: int, barrier: Any, results: Any, rounds: int, seconds: float) -> None:
    torch.set_num_threads(1)
    calls = kernels()
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            alone = 0.0
            for one in range(WORKERS):
                barrier.wait(PATIENCE)
                if one == rank:
                    alone = turn(call, seconds)
            barrier.wait(PATIENCE)
            results.put((name, turn(call, seconds) / alone))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    options = parser.parse_args()
    context, found = mp.get_context("spawn"), dict[str, list[float]]()
    barrier, results = context.Barrier(WORKERS), context.Queue()
    arguments = (barrier, results, options.rounds, options.seconds)
    running = [context.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(WORKERS)]
    for process in running:
        process.start()
    try:
        for _ in range(len(kernels()) * options.rounds * WORKERS):
            name, factor = results.get(timeout=PATIENCE)
            found.setdefault(name, []).append(factor)
    except queue.Empty:
        sys.exit("a worker ended early")
    print(json.dumps({"rounds": options.rounds, "seconds": options.seconds}))
    print(f"{'kernel':<32}{'quartile':>10}{'median':>10}{'quartile':>10}")
    for name, factors in found.items():
        low, middle, high = quantiles(factors, n=4)
        print(f"{name:<32}{low:>10.2f}{middle:>10.2f}{high:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

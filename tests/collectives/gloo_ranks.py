"""A real process that goes through all cases of ``test_over_gloo``: ``gloo_ranks.py RANK WORKERS PORT``."""

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.execute import all_reduce
from paceline.errors import UsageError

TYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16)
NATIVE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
LENGTHS = (0, 1, 2, 1001)
LARGE = 3_000_001
"""Elements that travel in segments."""


def values(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    return ((torch.arange(length) * 37 + rank * 11) % 13).to(dtype)


def compare(rank: int, name: str, op: str, length: int, dtype: torch.dtype) -> str:
    """Empty where the schedule gives what torch's own all-reduce gives."""
    mine = values(rank, length, dtype)
    theirs = mine.clone()
    all_reduce(mine, name, op if length % 2 else NATIVE[op])
    dist.all_reduce(theirs, NATIVE[op])
    return "" if torch.equal(mine, theirs) else f"{name} {op} {length} {dtype}: {mine[:5]} {theirs[:5]}"


def mistake(ask: Callable[[], None]) -> str:
    try:
        ask()
    except UsageError as error:
        return str(error)
    return "no mistake"


def mistakes(rank: int) -> dict[str, str]:
    odd = rank == 1
    small = build_schedule("ring", [0, 0])
    asks: dict[str, Callable[[], None]] = {
        "sizes": lambda: all_reduce(torch.zeros(4 + odd), "ring"),
        "types": lambda: all_reduce(
            torch.zeros(4, dtype=torch.int32 if odd else torch.float32), "ring", "mean"
        ),
        "operations": lambda: all_reduce(torch.zeros(4), "ring", "max" if odd else "sum"),
        "schedules": lambda: all_reduce(torch.zeros(4), "tree" if odd else "ring"),
        "unknown here": lambda: all_reduce(torch.zeros(4), "rings" if odd else "ring"),
        "unknown": lambda: all_reduce(torch.zeros(4), "rings"),
        "operation": lambda: all_reduce(torch.zeros(4), "ring", "summ"),
        "no such": lambda: all_reduce(torch.zeros(4, dtype=torch.bool), "ring", "mean"),
        "sparse": lambda: all_reduce(torch.eye(3).to_sparse() if odd else torch.eye(3), "ring"),
        "all sparse": lambda: all_reduce(torch.eye(3).to_sparse_csr(), "ring"),
        "a list": lambda: all_reduce([1.0] if odd else torch.zeros(1), "ring"),  # type: ignore[arg-type]
        "torch's operation": lambda: all_reduce(torch.zeros(4), "ring", dist.ReduceOp.PREMUL_SUM),
        "workers": lambda: all_reduce(torch.zeros(4), small),
    }
    return {name: mistake(ask) for name, ask in asks.items()}


def main(rank: int, workers: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
    differ = [
        compare(rank, name, op, length, dtype)
        for name in SCHEDULES
        for op in NATIVE
        for length in LENGTHS
        for dtype in TYPES
    ]
    differ += [compare(rank, name, "sum", LARGE, torch.float32) for name in SCHEDULES]
    found = mistakes(rank)
    pair = dist.new_group([0, 2])
    part = values(rank, 10, torch.float32)
    if rank in (0, 2):
        all_reduce(part, "ring", "mean", pair)
    dist.barrier()
    document = {"differ": [one for one in differ if one], "mistakes": found, "part": part.tolist()}
    sys.stdout.write(json.dumps(document))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""One host's ranks of a group over two hosts: ``shm_hosts.py OUT RANKS SIZE ADDRESS PORT`` (RANKS as 0,2)."""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from crew import RUN, attempt, crew_of, in_dev_shm, write_facts
from shm_cases import PIECE, Rank
from torch.distributed import ReduceOp

import paceline.shm

MISTAKES: dict[str, Callable[[int], Any]] = {
    "sizes": lambda rank: dist.all_reduce(torch.zeros(10 + rank)),
    "last only": lambda rank: dist.all_reduce(torch.zeros(10 + (rank == dist.get_world_size() - 1))),
    "types": lambda rank: dist.all_gather(
        [torch.zeros(3, dtype=(dtype := torch.int64 if rank == 1 else torch.float32))]
        * dist.get_world_size(),
        torch.zeros(3, dtype=dtype),
    ),
    "roots": lambda rank: dist.broadcast(torch.zeros(10), src=rank % 2),
    "reduce roots": lambda rank: dist.reduce(torch.zeros(10), dst=rank % 2),
    "collectives": lambda rank: dist.barrier() if rank else dist.all_reduce(torch.zeros(10)),
    "kinds": lambda rank: dist.reduce(torch.zeros(10), 0) if rank else dist.all_reduce(torch.zeros(10)),
    "mean of integers": lambda _: dist.all_reduce(torch.zeros(10, dtype=torch.int32), op=ReduceOp.AVG),
    "odd type": lambda rank: dist.all_reduce(
        torch.zeros(10, dtype=torch.float8_e5m2fnuz if rank == 1 else torch.float32)
    ),
    "odd everywhere": lambda _: dist.all_reduce(torch.zeros(10, dtype=torch.float8_e5m2fnuz)),
    "misfit": lambda rank: dist.scatter(
        torch.zeros(4), [torch.zeros(5)] * dist.get_world_size() if rank == 0 else None, src=0
    ),
}


def join(rank: int, size: int, address: str, port: int) -> None:
    dist.init_process_group(
        "shm",
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
        pg_options=paceline.shm.Options(run=RUN),
    )


def messages(rank: int, size: int) -> None:
    """To everybody from everybody, through memory or between hosts."""
    for length in (0, 3, PIECE):
        others = [other for other in range(size) if other != rank]
        sending = [dist.isend(torch.full((length,), float(rank)), other, tag=5) for other in others]
        for other in others:
            got = torch.full((length,), -1.0)
            dist.recv(got, other, tag=5)
            assert got.eq(other).all()
        for work in sending:
            work.wait()


def asynchronous(rank: int, size: int) -> None:
    tensors = [torch.full((length,), float(rank)) for length in (3, PIECE, 10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    assert all(work.is_completed() for work in works)
    assert all(tensor.eq(sum(range(size))).all() for tensor in tensors)


def mistaken(rank: int) -> dict[str, str]:
    texts = {}
    for name, mistake in MISTAKES.items():
        try:
            mistake(rank)
            texts[name] = "nothing was said"
        except ValueError as error:
            texts[name] = str(error)
        dist.all_reduce(torch.zeros(5))
    return texts


def main() -> None:
    ranks, size = [int(word) for word in sys.argv[2].split(",")], int(sys.argv[3])

    def work(place: int) -> dict[str, Any]:
        rank = ranks[place]
        join(rank, size, sys.argv[4], int(sys.argv[5]))
        one = Rank(rank, size, whole=True)
        cases = [*list(one.cases())[::6], ("not a number", one.not_a_number)]
        cases.append(("messages", lambda: messages(rank, size)))
        cases.append(("asynchronous", lambda: asynchronous(rank, size)))
        found: dict[str, Any] = {"failed": attempt(cases), "left": in_dev_shm()}
        if not found["failed"]:
            found["texts"] = mistaken(rank)
            dist.barrier()
            if rank == size - 1:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            begun = time.monotonic()
            try:
                dist.all_reduce(torch.zeros(5))
            except paceline.shm.PeerLost as error:
                found["lost"] = [str(error), time.monotonic() - begun]
        return found

    write_facts({"ranks": crew_of(work, len(ranks), 60)})


if __name__ == "__main__":
    main()

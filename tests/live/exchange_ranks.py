"""Ranks that exchange vectors as encoded gradients do: ``exchange_ranks.py PORTS``.

They are forked, so that torch is imported once. The script fails with what a rank found wrong.
"""

import os
import sys
import traceback
from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.worker.comm import SoloComm, join_group

SIZES = (2, 3, 5)
LENGTHS = (0, 1, 7, 300_007)


def values(source: int, to: int, length: int) -> Tensor:
    return ((torch.arange(length) * 37 + source * 11 + to * 5) % 251).to(torch.uint8)


def check(comm: SoloComm, length: int) -> None:
    """A sum goes on in this thread while another one exchanges: neither may get what belongs to the other."""
    rank, ranks = comm.rank, range(comm.workers)
    gathered = comm.all_gather(values(rank, 0, length))
    assert all(torch.equal(gathered[one], values(one, 0, length)) for one in ranks), f"all-gather of {length}"
    found: list[Tensor] = []
    wait = comm.start(lambda: found.extend(comm.all_to_all([values(rank, to, length) for to in ranks])))
    if comm.transport == "shm":  # whose collectives all have one queue
        wait()
    total = torch.full((length,), float(rank + 1))
    comm.sum(total)
    wait()
    assert all(torch.equal(found[one], values(one, rank, length)) for one in ranks), f"all-to-all of {length}"
    assert torch.equal(total, torch.full((length,), float(sum(ranks) + comm.workers))), f"sum of {length}"


def live(rank: int, workers: int, port: int, backend: str) -> None:
    torch.set_num_threads(1)
    place = ProcessInfo(rank=rank, workers=workers, local_rank=rank, local_workers=workers, port=port)
    with join_group(place, LiveOptions(backend=backend, timeout=30.0)) as comm:
        for length in LENGTHS:
            check(comm, length)


def fork(rank: int, workers: int, port: int, backend: str) -> int:
    if process := os.fork():
        return process
    code = 1
    try:
        live(rank, workers, port, backend)
        code = 0
    except BaseException:
        sys.stderr.write(f"rank {rank} of {workers} over {backend}: {traceback.format_exc()}")
        sys.stderr.flush()
    os._exit(code)


def failures(ports: Iterator[int]) -> Iterator[int]:
    for workers in SIZES:
        for backend in ("gloo", "shm"):
            port = next(ports)
            processes = [fork(rank, workers, port, backend) for rank in range(workers)]
            yield sum(os.waitpid(process, 0)[1] != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(sum(failures(map(int, sys.argv[1].split(",")))))

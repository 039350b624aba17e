"""Too little memory, in a mount namespace of its own: ``unshare -m shm_room.py OUT`` writes what the ranks said.

What is free is what /proc/meminfo says: another is laid over it, as container systems do. Rank 0 must not have the
right to trace others (``setpriv --bounding-set -sys_ptrace``), which opens what is closed here.
"""

import ctypes
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from crew import attempt, crew_of, free_port, world, write_facts
from shm_cases import Rank

import paceline.shm
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.worker.comm import join_group

LENGTH = 5_000_000


MEMINFO = Path(sys.argv[1]) / "meminfo"
_DUMPABLE = 4
"""PR_SET_DUMPABLE: without it nobody else may look into a process, as after a change of user."""


def free(megabytes: float) -> None:
    """Have so much memory free from now on."""
    MEMINFO.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {megabytes * 1000 / 1.024:.0f} kB\n")


def hidden(rank: int, size: int, port: int) -> dict[str, str]:
    """What rank 0 has open is nobody else's business."""
    if rank == 0:
        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    return without(rank, size, port)


def nowhere(rank: int, port: int) -> list[int]:
    """Which ranks share memory where nothing can be written to /dev/shm."""
    world(rank, 2, port)
    dist.all_reduce(paceline.shm.zeros(LENGTH))
    return list(dist.group.WORLD.comm.team_sizes)


def listening(rank: int, work: Callable[[int], Any]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", FutureWarning)
        found = work(rank)
    return {"found": found, "heard": [f"{warning.category.__name__}: {warning.message}" for warning in heard]}


def without(rank: int, size: int, port: int, every: int = 12) -> dict[str, str]:
    """Everything must work without shared memory, over Gloo: one case of so many, for whatever reason there is none."""
    world(rank, size, port)
    one = Rank(rank, size, whole=True)
    failed = attempt([*list(one.cases())[::every], ("not a number", one.not_a_number)])
    dist.barrier()
    return failed


def elsewhere(rank: int, port: int) -> dict[str, str]:
    """Another kind of machine, without what Linux on x86-64 has."""
    del os.pidfd_open
    platform.machine = lambda: "arm64"
    return without(rank, 2, port)


def crowded(rank: int, port: int) -> list[float]:
    """There is room for the group, and not for a big tensor."""
    world(rank, 2, port)
    tensors = [paceline.shm.zeros(1000), paceline.shm.zeros(LENGTH), paceline.shm.zeros(1000)]
    for tensor in tensors:
        dist.all_reduce(tensor.add_(rank + 1))
    return [float(tensor.min() + tensor.max()) for tensor in tensors]


def live(rank: int, port: int) -> dict[str, Any]:
    """What a worker of a run shows of it."""
    notes: list[str] = []
    place = ProcessInfo(rank=rank, workers=2, local_rank=rank, local_workers=2, port=port)
    group = join_group(place, LiveOptions(timeout=20.0), note=notes.append)
    group.zeros(LENGTH, torch.float32, torch.device("cpu"))
    group.close()
    return {"transport": group.transport, "notes": notes}


def main() -> None:
    facts = {}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm"], check=True)
    facts["nowhere"] = crew_of(partial(listening, work=partial(nowhere, port=free_port())), 2)
    scene = partial(listening, work=partial(hidden, size=3, port=free_port()))
    facts["hidden"] = crew_of(scene, 3, 40)
    subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2,gid=12345", "proc", "/proc"], check=True)
    scene = partial(listening, work=partial(hidden, size=2, port=free_port()))
    facts["invisible"] = crew_of(scene, 2, 40)
    free(0.06)
    subprocess.run(["mount", "--bind", str(MEMINFO), "/proc/meminfo"], check=True)
    for name, size, every in (("tiny", 2, 12), ("tiny of three", 3, 4)):
        scene = partial(listening, work=partial(without, size=size, port=free_port(), every=every))
        facts[name] = crew_of(scene, size, 40)
    facts["live"] = crew_of(partial(listening, work=partial(live, port=free_port())), 2)
    port = free_port()
    facts["elsewhere"] = crew_of(lambda rank: listening(rank, partial(elsewhere, port=port)), 2, 40)
    free(20)
    facts["live, crowded"] = crew_of(partial(listening, work=partial(live, port=free_port())), 2)
    facts["crowded"] = crew_of(partial(listening, work=partial(crowded, port=free_port())), 2)
    write_facts(facts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

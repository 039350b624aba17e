"""Too little /dev/shm, in a mount namespace of its own: ``unshare -m shm_room.py OUT`` writes what the ranks said."""

import os
import platform
import subprocess
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
from paceline.collectives.shm import segment
from paceline.runtimes.live.group import join
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.place import Place

LENGTH = 5_000_000


def room(settings: str) -> None:
    """Lay another /dev/shm over the present one."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "tmpfs", "/dev/shm"], check=True)


def listening(rank: int, work: Callable[[int], Any]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", FutureWarning)
        found = work(rank)
    return {"found": found, "heard": [f"{warning.category.__name__}: {warning.message}" for warning in heard]}


def without(rank: int, size: int, port: int) -> dict[str, str]:
    """Everything must work without shared memory, over Gloo."""
    world(rank, size, port)
    one = Rank(rank, size, whole=True)
    failed = attempt([*list(one.cases())[:: 4 if size == 3 else 12], ("not a number", one.not_a_number)])
    dist.barrier()
    return failed


def elsewhere(rank: int, port: int) -> dict[str, str]:
    """Another kind of machine, without what Linux on x86-64 has."""
    del os.pidfd_open
    platform.machine = lambda: "arm64"
    segment.ROOM = Path("/nowhere")
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
    place = Place(rank=rank, workers=2, local_rank=rank, local_workers=2, port=port)
    group = join(place, LiveOptions(timeout=20.0), torch.device("cpu"), note=notes.append)
    group.zeros(LENGTH, torch.float32, torch.device("cpu"))
    group.leave()
    return {"transport": group.transport, "notes": notes}


def main() -> None:
    facts = {}
    for name, size, settings in (
        ("tiny", 2, "size=64k"),
        ("tiny of three", 3, "size=64k"),
        ("read only", 2, "ro"),
    ):
        room(settings)
        scene = partial(listening, work=partial(without, size=size, port=free_port()))
        facts[name] = crew_of(scene, size, 40)
    port = free_port()
    facts["elsewhere"] = crew_of(lambda rank: listening(rank, partial(elsewhere, port=port)), 2, 40)
    room("size=64k")
    facts["live"] = crew_of(partial(listening, work=partial(live, port=free_port())), 2)
    room("size=20m")
    facts["live, crowded"] = crew_of(partial(listening, work=partial(live, port=free_port())), 2)
    facts["crowded"] = crew_of(partial(listening, work=partial(crowded, port=free_port())), 2)
    write_facts(facts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

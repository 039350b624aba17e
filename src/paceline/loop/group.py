"""A process whose script, or whoever has started it, has formed the default group of torch.distributed already."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec
import torch.distributed as dist

from paceline.collectives.schedule import number_hosts
from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo, host_name, named_secret_file
from paceline.runtimes.live.run_store import default_store
from paceline.shm.host import host_id


class _Member(msgspec.Struct, array_like=True):
    """What each rank tells the others; the store takes values from anybody, so each is read as its type."""

    host: str
    process: int
    address: str


def process_of_group(info: ProcessInfo | None, wait: float = 300.0) -> ProcessInfo | None:
    """The rank and the host of this process, by the group if there is one; ``info`` is what the environment says.

    All ranks of the group ask at the same time, or within ``wait`` seconds. The group stays as it is: the run has one
    of its own beside it.
    """
    store = default_store()
    if store is None:
        return info
    rank, workers = dist.get_rank(), dist.get_world_size()
    if info and (info.rank, info.workers) != (rank, workers):
        raise UsageError(
            f"this process is rank {rank} of {workers} in the group that init_process_group() has formed, and "
            f"{info.known_by} says rank {info.rank} of {info.workers}; call distribute() where they are the same"
        )
    if info and info.launch:
        return info
    mine = _Member(host_id(), os.getpid(), info.address if info else host_name())
    store.set(f"member/{rank}", msgspec.json.encode(mine).decode())
    keys = [f"member/{one}" for one in range(workers)]
    try:
        store.wait(keys, timedelta(seconds=wait))
    except RuntimeError:
        missing = ", ".join(str(one) for one, key in enumerate(keys) if not store.check([key]))
        raise UsageError(
            f"rank {missing} of the process group did not call distribute() within {wait:g} s; all its ranks call it"
        ) from None
    members = [msgspec.json.decode(store.get(key), type=_Member) for key in keys]
    known = ProcessInfo(
        address=members[0].address, secret_file=named_secret_file(), secret_of=members[0].process
    )
    return placed(known, rank, [member.host for member in members])


def placed(info: ProcessInfo, rank: int, hosts: Sequence[str]) -> ProcessInfo:
    """The same process as the one of this rank, where each rank's host is known."""
    nodes = number_hosts(hosts)
    here = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    return replace(
        info,
        rank=rank,
        workers=len(hosts),
        local_rank=here.index(rank),
        local_workers=len(here),
        node_rank=nodes[rank],
        nodes=max(nodes) + 1,
    )

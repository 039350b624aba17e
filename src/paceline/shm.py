"""The shared-memory backend for torch.distributed: import this, then ``init_process_group("shm")``.

It works for DDP and for any script, on one host through memory, across hosts with Gloo between them. Tensors made by
``zeros`` live in the shared memory, and sums of them happen in place.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.collectives.shm.joining import join
from paceline.collectives.shm.peers import PeerLost
from paceline.collectives.shm.process_group import SharedMemoryGroup
from paceline.errors import Mistake

__all__ = ["Options", "PeerLost", "SharedMemoryGroup", "zeros"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``pg_options`` of ``init_process_group`` and ``new_group`` may say."""

    run: str = "run"
    """What the shared memory is named after, besides the group."""


def zeros(
    length: int, *, dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None
) -> Tensor:
    """A flat tensor of zeros in the memory that the ranks share; all ranks of the group call this together.

    Sums of it, or of contiguous parts of it, need no copying. Where there is too little shared memory it is an
    ordinary tensor, after a warning.
    """
    found = group or dist.group.WORLD
    if not isinstance(found, SharedMemoryGroup):
        raise Mistake(f"zeros needs a group whose backend is shm, and this one is {found}; pass group=")
    return found.zeros(length, dtype)


def _create(options: Any, chosen: Options | None) -> SharedMemoryGroup:
    party = join(
        store=options.store,
        rank=options.group_rank,
        names=options.global_ranks_in_group or range(options.group_size),
        run=(chosen or Options()).run,
        group=str(options.group_id),
        timeout=options.timeout.total_seconds(),
    )
    return SharedMemoryGroup(party)


dist.Backend.register_backend("shm", _create, extended_api=True, devices=["cpu"])

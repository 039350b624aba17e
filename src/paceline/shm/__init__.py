"""The shared-memory backend for torch.distributed: import this, then ``init_process_group("shm")``.

It works for DDP and for any script, on one host through memory, across hosts with Gloo between them. Tensors made by
``zeros`` live in the shared memory, and sums of them happen in place.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.shm.barrier import PeerLost
from paceline.shm.group_store import StoreTampered
from paceline.shm.joining import Options, join
from paceline.shm.operations import InvalidCall
from paceline.shm.process_group import SharedMemoryGroup

__all__ = ["InvalidCall", "Options", "PeerLost", "SharedMemoryGroup", "StoreTampered", "zeros"]


def zeros(
    length: int, *, dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None
) -> Tensor:
    """A flat tensor in the memory that the ranks share, made by all together; sums of it, or of parts, are in place.

    Where there is too little shared memory it is an ordinary tensor, after a warning.
    """
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, SharedMemoryGroup):
        raise InvalidCall(
            f"zeros needs a group whose backend is shm, and that this rank is in, not {found!r}: "
            'call init_process_group("shm") first, or pass one as group='
        )
    return found.zeros(length, dtype)


def _create(options: Any, chosen: Options | None) -> SharedMemoryGroup:
    return SharedMemoryGroup(join(options, chosen or Options()))


dist.Backend.register_backend("shm", _create, extended_api=True, devices=["cpu"])

"""What torch's DistributedDataParallel exchanges and when, and where there may be none; it is only looked at."""

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.collectives.traffic import broadcast_bytes, ring_bytes
from paceline.errors import UsageError
from paceline.strategies import build_strategy


def active_ddp() -> DistributedDataParallel | None:
    """The one in whose forward this is, if any."""
    found: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    return found


def refuse_ddp(around: nn.Module | None, model: nn.Module) -> None:
    """``around`` is the model itself, or what calls it."""
    if isinstance(around, DistributedDataParallel) and any(one is model for one in around.modules()):
        raise UsageError(
            "the model is in a DistributedDataParallel, which averages gradients too; give distribute() the model "
            "itself, and call it without one"
        )


@dataclass
class DDPExchanges:
    """``gradient`` and ``buffers`` are the bytes that this worker sends and receives for each."""

    ddp: DistributedDataParallel
    rank: int = field(init=False)
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        group = self.ddp.process_group
        self.rank, self.workers = dist.get_rank(group), dist.get_world_size(group)
        trained = sum(one.nbytes for one in self.trained)
        sent = 0 if self.own_hook else ring_bytes(trained, self.workers)
        self.gradient = (sent, sent)
        buffers = sum(one.nbytes for one in self.ddp.modules_buffers)
        self.buffers = broadcast_bytes(buffers, self.workers, self.rank, 0)

    @property
    def trained(self) -> list[nn.Parameter]:
        ignored = self.ddp.parameters_to_ignore
        named = self.ddp.module.named_parameters()
        return [one for name, one in named if one.requires_grad and name not in ignored]

    @property
    def own_hook(self) -> str:
        """The script's own communication hook, which sends what it wants to; empty where it has none."""
        known: dict[str, Any] = self.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return str(known.get("comm_hook", ""))

    @property
    def strategy(self) -> str:
        most = self.ddp.bucket_bytes_cap
        usual = vars(build_strategy("ddp"))
        if self.ddp.bucket_bytes_cap_default or most == usual["bucket"]:
            return "ddp"
        return f"ddp:bucket={most},first_bucket={most}"

    @property
    def averages_next(self) -> bool:
        """Whether the backward of the forward that begins now averages gradients."""
        return self.ddp.require_backward_grad_sync

    @property
    def has_buffers(self) -> bool:
        """Whether there are any that a forward may make rank 0's."""
        return self.ddp.broadcast_buffers and len(self.ddp.modules_buffers) > 0

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether the forward that begins now first makes all buffers rank 0's."""
        return bool(self.ddp.will_sync_module_buffers())  # type: ignore[no-untyped-call]

"""Schedules over torch.distributed, point to point."""

import torch.distributed as dist
from torch import Tensor

from paceline.collectives.execute import Pending


class TorchTransport:
    """Messages as isend and irecv of one group; ranks are those in the group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def send(self, tensor: Tensor, to: int) -> Pending:
        """Begin to send."""
        work = dist.isend(tensor, group=self._group, group_dst=to)
        assert work is not None
        return work

    def receive(self, tensor: Tensor, source: int) -> Pending:
        """Begin to receive."""
        work = dist.irecv(tensor, group=self._group, group_src=source)
        assert work is not None
        return work

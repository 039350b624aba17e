"""Collectives across hosts: shared memory inside each, Gloo between their first ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp

from paceline.collectives.shm import call
from paceline.collectives.shm.call import Call
from paceline.collectives.shm.reducers import reducer
from paceline.collectives.shm.team import Team
from paceline.errors import Mistake

_OPS = {
    "sum": ReduceOp.SUM,
    "mean": ReduceOp.SUM,
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "and": ReduceOp.BAND,
    "or": ReduceOp.BOR,
    "xor": ReduceOp.BXOR,
}
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
"""Types that Gloo does not know, and what carries them between hosts."""


class Hosts:
    """Each host's ranks are a team, its first rank talks to the other hosts' first ranks.

    The same promises as ``Team``: a call that the ranks do not agree on raises the same ``Mistake`` on all of them.
    """

    def __init__(
        self, rank: int, teams: Sequence[Sequence[int]], team: Team, leaders: Any, everybody: Any
    ) -> None:
        """``teams`` are the ranks of each host.

        ``leaders`` is the Gloo group of their first ranks, used by those only; ``everybody`` is that of all ranks.
        """
        self.rank, self.size = rank, sum(map(len, teams))
        self._teams, self._team, self._leaders, self._everybody = teams, team, leaders, everybody
        self._home = next(index for index, ranks in enumerate(teams) if rank in ranks)
        self._order = [rank for ranks in teams for rank in ranks]
        self._most = max(map(len, teams))

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """Shared inside this host."""
        self._agree(Call("zeros", dtype, length))
        return self._team.zeros(length, dtype)

    def barrier(self) -> None:
        """Agreeing needs everybody."""
        self._agree(Call("barrier", torch.uint8, 0))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Inside each host, between the hosts, and back."""
        self._agree(Call("all_reduce", tensor.dtype, tensor.numel(), op))
        how = reducer(op, tensor.dtype)
        self._team.reduce(tensor, 0, "sum" if how.averages else op)
        if self._leads:
            self._reduce_between(tensor, op)
        self._team.broadcast(tensor, 0)
        how.finish(tensor, self.size)

    def _reduce_between(self, tensor: Tensor, op: str) -> None:
        carried = tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(_OPS[op])
        self._leaders.allreduce([carried], options).wait()
        if carried is not tensor:
            tensor.copy_(carried)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Inside the root's host, between the hosts, inside the others."""
        self._agree(Call("broadcast", tensor.dtype, tensor.numel(), root=root))
        self._spread(tensor, root)

    def _spread(self, tensor: Tensor, root: int) -> None:
        source = next(index for index, ranks in enumerate(self._teams) if root in ranks)
        if source == self._home:
            self._team.broadcast(tensor, self._teams[source].index(root))
        if self._leads:
            options = BroadcastOptions()
            options.rootRank = source
            self._leaders.broadcast([tensor.view(-1).view(torch.uint8)], options).wait()
        if source != self._home:
            self._team.broadcast(tensor, 0)

    def reduce(self, tensor: Tensor, root: int, op: str = "sum") -> None:
        """An all-reduce that only the root keeps."""
        copy = tensor.clone()
        self.all_reduce(copy, op)
        if self.rank == root:
            tensor.copy_(copy)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        """Each host gathers its own part, the first ranks exchange the parts, each host spreads them."""
        self._agree(Call("all_gather", tensor.dtype, tensor.numel()))
        for rank, found in zip(self._order, self._gather(tensor.view(-1)), strict=True):
            outputs[rank].view(-1).copy_(found)

    def _gather(self, flat: Tensor) -> list[Tensor]:
        """Everybody's tensor, host by host."""
        block = torch.zeros(self._most, len(flat), dtype=flat.dtype)
        self._team.all_gather(list(block[: self._team.size]), flat)
        blocks = torch.empty(len(self._teams), *block.shape, dtype=flat.dtype)
        if self._leads:
            parts = [part.view(torch.uint8) for part in blocks.view(len(self._teams), -1)]
            self._leaders.allgather([parts], [block.view(-1).view(torch.uint8)]).wait()
        self._team.broadcast(blocks, 0)
        return [part for ranks, host in zip(self._teams, blocks, strict=True) for part in host[: len(ranks)]]

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
        """An all-gather that only the root keeps."""
        self._agree(Call("gather", tensor.dtype, tensor.numel(), root=root))
        found = self._gather(tensor.view(-1))
        if self.rank == root:
            for rank, part in zip(self._order, found, strict=True):
                outputs[rank].view(-1).copy_(part)

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: str = "sum") -> None:
        """An all-reduce of which each rank keeps its part."""
        whole = torch.cat([given.reshape(-1) for given in inputs])
        self.all_reduce(whole, op)
        output.view(-1).copy_(whole.view(self.size, -1)[self.rank])

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """A broadcast of which each rank keeps its part."""
        self._agree(Call("scatter", output.dtype, output.numel(), root=root))
        whole = torch.empty(self.size, output.numel(), dtype=output.dtype)
        for part, given in zip(whole, inputs, strict=False):
            part.copy_(given.reshape(-1))
        self._spread(whole, root)
        output.view(-1).copy_(whole[self.rank])

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """An all-gather of which each rank keeps its column."""
        self._agree(Call("all_to_all", inputs[0].dtype, inputs[0].numel()))
        found = self._gather(torch.cat([given.reshape(-1) for given in inputs]))
        for rank, part in zip(self._order, found, strict=True):
            outputs[rank].view(-1).copy_(part.view(self.size, -1)[self.rank])

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Through memory where both share a host."""
        if to in self._teams[self._home]:
            self._team.send(tensor, self._teams[self._home].index(to), tag)
        else:
            self._everybody.send([tensor], to, tag).wait()

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Through memory where both share a host."""
        if source in self._teams[self._home]:
            self._team.receive(tensor, self._teams[self._home].index(source), tag)
        else:
            self._everybody.recv([tensor], source, tag).wait()

    def receive_any(self, tensor: Tensor, tag: int) -> int:  # noqa: ARG002
        """Not across hosts: there are two ways in, and no way to wait at both."""
        raise Mistake("recv from any source works on one host only; name the source")

    def close(self) -> None:
        """Leave this host's team; Gloo closes with its last reference."""
        self._team.close()

    @property
    def _leads(self) -> bool:
        return self._team.rank == 0

    def _agree(self, mine: Call) -> None:
        """Compare what all ranks ask for before any data moves: a host that differs would hang the others."""
        packed = torch.frombuffer(bytearray(mine.pack()), dtype=torch.uint8)
        asked = [call.unpack(bytes(part.tolist())) for part in self._gather(packed)]
        for rank, other in zip(self._order, asked, strict=True):
            if other != asked[0]:
                raise Mistake(call.disagreement(self._order[0], asked[0], rank, other))

"""Collectives across hosts: shared memory inside each, Gloo between their first ranks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, Work

from paceline.shm.barrier import PeerLost
from paceline.shm.call import Call, Tensors, check_agreement
from paceline.shm.group_store import GroupStore
from paceline.shm.local_comm import LocalComm
from paceline.shm.operations import InvalidCall, Operation, find_operation

_GLOO_TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64,
)  # fmt: skip
"""Types that Gloo can calculate with."""
_NEWS = 1.0
"""Seconds to wait for another host to say which rank it lost."""


@dataclass
class HierarchicalComm:
    """The ranks of each host share memory, and its first rank talks to the other hosts' first ranks."""

    rank: int
    names: Sequence[int]
    hosts: Sequence[Sequence[int]]
    """The ranks of each, or one rank each where memory could not be shared."""
    local: LocalComm
    leaders: Any  # Gloo groups: of the hosts' first ranks, and of all
    everyone: Any
    store: GroupStore
    closed: bool = False
    cut_off: bool = False

    def __post_init__(self) -> None:
        self.size, self.team_sizes = len(self.names), [len(ranks) for ranks in self.hosts]
        self.zeros = self.local.zeros
        self._home = next(ranks for ranks in self.hosts if self.rank in ranks)

    def agree(self, call: Call) -> None:
        """Compare what all ranks ask for before any data moves: a host that differs would hang the others."""
        self.local.barrier.doing = call.kind
        packed = torch.frombuffer(bytearray(call.pack(self.rank, self.size)), dtype=torch.uint8)
        check_agreement([bytes(one.tolist()) for one in self._gather(packed)], self.names)

    def all_reduce(self, call: Call) -> None:
        self.agree(call)
        self._combine(call.outputs[0], find_operation(call.op, call.outputs[0].dtype))

    def repeat(self, tensor: Tensor, op: str) -> bool:  # noqa: ARG002
        """Nothing is kept here of calls that were made before."""
        return False

    def _combine(self, flat: Tensor, how: Operation) -> None:
        combine = find_operation("sum", flat.dtype) if how.averages else how
        self.local.reduce(flat, 0, combine)
        if self.local.rank == 0:
            self._reduce_between(flat, combine)
        self.local.broadcast(flat, 0)
        how.average(flat, self.size)

    def _reduce_between(self, flat: Tensor, how: Operation) -> None:
        # Gloo's max and min of floats compare, and so lose what is not a number; torch's keep it.
        loses = how.by_order and flat.is_floating_point()
        if flat.dtype in _GLOO_TYPES and not loses:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(how.torch_op)
            self._between(lambda: self.leaders.allreduce([flat], options), "all_reduce")
            return
        # Gloo only moves: each first rank combines all hosts' tensors itself.
        parts = self._gather_between(flat, "all_reduce")
        flat.copy_(parts[0])
        for part in parts[1:]:
            how.combine(flat, part)

    def _gather_between(self, flat: Tensor, doing: str) -> Tensor:
        parts = torch.empty(len(self.hosts), len(flat), dtype=flat.dtype)
        data = [part.view(torch.uint8) for part in parts]
        self._between(lambda: self.leaders.allgather([data], [flat.view(torch.uint8)]), doing)
        return parts

    def broadcast(self, flat: Tensor, root: int) -> None:
        at_home = root in self._home
        if at_home:
            self.local.broadcast(flat, self._home.index(root))
        if self.local.rank == 0:
            options = BroadcastOptions()
            options.rootRank = next(index for index, ranks in enumerate(self.hosts) if root in ranks)
            data = [flat.view(torch.uint8)]
            self._between(lambda: self.leaders.broadcast(data, options), "broadcast")
        if not at_home:
            self.local.broadcast(flat, 0)

    def reduce(self, flat: Tensor, root: int, how: Operation) -> None:
        copy = flat.clone()
        self._combine(copy, how)
        if self.rank == root:
            flat.copy_(copy)

    def gather(self, outputs: Tensors, flat: Tensor) -> None:
        for output, found in zip(outputs, self._gather(flat), strict=False):
            output.copy_(found)

    def _gather(self, flat: Tensor) -> list[Tensor]:
        """Each host gathers its own part, the first ranks exchange the parts, each host spreads them."""
        block = torch.zeros(max(self.team_sizes), len(flat), dtype=flat.dtype)
        self.local.gather(list(block), flat)
        blocks = torch.empty(len(self.hosts), block.numel(), dtype=flat.dtype)
        if self.local.rank == 0:
            blocks = self._gather_between(block.view(-1), "all_gather")
        self.local.broadcast(blocks.view(-1), 0)
        found = {
            rank: part
            for ranks, host in zip(self.hosts, blocks.view(len(self.hosts), *block.shape), strict=True)
            for rank, part in zip(ranks, host, strict=False)
        }
        return [found[rank] for rank in range(self.size)]

    def reduce_scatter(self, output: Tensor, inputs: Tensors, how: Operation) -> None:
        """An all-reduce of which each rank keeps its part."""
        whole = torch.cat(list(inputs))
        self._combine(whole, how)
        output.copy_(whole.view(self.size, -1)[self.rank])

    def scatter(self, output: Tensor, inputs: Tensors, root: int) -> None:
        """A broadcast of which each rank keeps its part."""
        whole = torch.cat(list(inputs)) if inputs else output.new_empty(self.size * len(output))
        self.broadcast(whole, root)
        output.copy_(whole.view(self.size, -1)[self.rank])

    def all_to_all(self, outputs: Tensors, inputs: Tensors, longest: int) -> None:
        """An all-gather of which each rank keeps its column."""
        padded = torch.zeros(self.size, longest, dtype=inputs[0].dtype)
        for row, given in zip(padded, inputs, strict=True):
            row[: len(given)].copy_(given)
        for output, part in zip(outputs, self._gather(padded.view(-1)), strict=True):
            output.copy_(part.view(self.size, longest)[self.rank, : len(output)])

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        if to in self._home:
            self.local.send(tensor, self._home.index(to), tag)
        else:
            self._between(lambda: self.everyone.send([tensor], to, tag), "send")

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        if source in self._home:
            self.local.receive(tensor, self._home.index(source), tag)
        else:
            self._between(lambda: self.everyone.recv([tensor], source, tag), "recv")

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Only where no other rank shares this host: else there are two ways in, and no way to wait at both."""
        if self.local.size > 1:
            raise InvalidCall("recv from any source works on one host only; name the source")
        work = self.everyone.recv_anysource([tensor], tag)
        self._between(lambda: work, "recv")
        return int(work._source_rank())

    def explain(self, error: PeerLost) -> PeerLost:
        """A rank that saw another die, or is cut off, tells all hosts; one that only sees the consequences asks why."""
        with suppress(PeerLost):  # the store may be gone as well
            if not error.seen and (known := self.store.loss(_NEWS if self.cut_off else 2 * _NEWS)):
                error = PeerLost(known)
            if error.seen or self.cut_off:
                self.store.announce(str(error))
        return error

    def close(self) -> None:
        self.local.close()
        if not self.closed:
            self.closed = True
            for group in (self.leaders, self.everyone):
                if group is not None:
                    group.abort()

    def _between(self, start: Callable[[], Work], doing: str) -> None:
        if self.closed:
            raise PeerLost("this group was closed")
        try:
            start().wait()
        except RuntimeError as error:
            self.cut_off = True
            away = ", ".join(str(name) for rank, name in enumerate(self.names) if rank not in self._home)
            raise PeerLost(
                f"another host is lost, of those with ranks {away} (during {doing}): {error}"
            ) from error

"""Collectives across hosts: shared memory inside each, Gloo between their first ranks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, Work

from paceline.shm.barrier import PeerLost
from paceline.shm.call import Call, check_agreement
from paceline.shm.group_store import GroupStore
from paceline.shm.local_comm import LocalComm
from paceline.shm.operations import InvalidCall, Operation, find_operation

_GLOO_TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64,
)  # fmt: skip
"""Types that Gloo can calculate with."""
_NEWS = 1.0
"""Seconds to wait for another host to say which rank it lost."""


class HierarchicalComm:
    """The ranks of each host share memory, and its first rank talks to the other hosts' first ranks.

    The same calls and promises as ``LocalComm``.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[int],
        hosts: Sequence[Sequence[int]],
        local: LocalComm,
        leaders: Any,
        everyone: Any,
        store: GroupStore,
    ) -> None:
        """``hosts`` are the ranks of each, ``names`` is what errors call all ranks.

        ``leaders`` is the Gloo group of the first ranks, used by those only; ``everyone`` is that of all ranks.
        """
        self.rank, self.size, self.names, self._store = rank, len(names), names, store
        self.team_sizes = [len(ranks) for ranks in hosts]
        """Those of each host, or one rank each where memory could not be shared."""
        self._hosts, self._local, self._leaders, self._everyone = hosts, local, leaders, everyone
        self._home = next(ranks for ranks in hosts if rank in ranks)
        self._closed = self._cut_off = False

    def agree(self, call: Call) -> None:
        """Compare what all ranks ask for before any data moves: a host that differs would hang the others."""
        self._local.arena.barrier.doing = call.kind
        packed = torch.frombuffer(bytearray(call.pack(self.rank, self.size)), dtype=torch.uint8)
        check_agreement([bytes(one.tolist()) for one in self._gather(packed)], self.names)

    def zeros(self, like: Tensor) -> Tensor:
        """Shared inside this host."""
        self.agree(Call("zeros", [like]))
        return self._local.zeros(like)

    def all_reduce(self, call: Call) -> None:
        self.agree(call)
        self._combine(call.outputs[0], find_operation(call.op, call.outputs[0].dtype))

    def _combine(self, flat: Tensor, how: Operation) -> None:
        """Inside each host, between the hosts, and back."""
        combine = find_operation("sum", flat.dtype) if how.averages else how
        self._local.reduce(flat, 0, combine)
        if self._local.rank == 0:
            self._reduce_between(flat, combine)
        self._local.broadcast(flat, 0)
        how.average(flat, self.size)

    def _reduce_between(self, flat: Tensor, how: Operation) -> None:
        # Gloo's max and min of floats compare, and so lose what is not a number; torch's keep it.
        loses = how.by_order and flat.is_floating_point()
        if flat.dtype in _GLOO_TYPES and not loses:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(how.torch_op)
            self._between(lambda: self._leaders.allreduce([flat], options), "all_reduce")
            return
        # Gloo only moves: each first rank combines all hosts' tensors itself.
        parts = self._gather_between(flat, "all_reduce")
        flat.copy_(parts[0])
        for part in parts[1:]:
            how.combine(flat, part)

    def _gather_between(self, flat: Tensor, doing: str) -> Tensor:
        """What each host's first rank has, by host."""
        parts = torch.empty(len(self._hosts), len(flat), dtype=flat.dtype)
        data = [part.view(torch.uint8) for part in parts]
        self._between(lambda: self._leaders.allgather([data], [flat.view(torch.uint8)]), doing)
        return parts

    def broadcast(self, flat: Tensor, root: int) -> None:
        """Inside the root's host, between the hosts, inside the others."""
        at_home = root in self._home
        if at_home:
            self._local.broadcast(flat, self._home.index(root))
        if self._local.rank == 0:
            options = BroadcastOptions()
            options.rootRank = next(index for index, ranks in enumerate(self._hosts) if root in ranks)
            data = [flat.view(torch.uint8)]
            self._between(lambda: self._leaders.broadcast(data, options), "broadcast")
        if not at_home:
            self._local.broadcast(flat, 0)

    def reduce(self, flat: Tensor, root: int, how: Operation) -> None:
        """An all-reduce that only the root keeps."""
        copy = flat.clone()
        self._combine(copy, how)
        if self.rank == root:
            flat.copy_(copy)

    def gather(self, outputs: Sequence[Tensor], flat: Tensor) -> None:
        for output, found in zip(outputs, self._gather(flat), strict=False):
            output.copy_(found)

    def _gather(self, flat: Tensor) -> list[Tensor]:
        """Each host gathers its own part, the first ranks exchange the parts, each host spreads them."""
        block = torch.zeros(max(self.team_sizes), len(flat), dtype=flat.dtype)
        self._local.gather(list(block), flat)
        blocks = torch.empty(len(self._hosts), block.numel(), dtype=flat.dtype)
        if self._local.rank == 0:
            blocks = self._gather_between(block.view(-1), "all_gather")
        self._local.broadcast(blocks.view(-1), 0)
        found = {
            rank: part
            for ranks, host in zip(self._hosts, blocks.view(len(self._hosts), *block.shape), strict=True)
            for rank, part in zip(ranks, host, strict=False)
        }
        return [found[rank] for rank in range(self.size)]

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: Operation) -> None:
        """An all-reduce of which each rank keeps its part."""
        whole = torch.cat(list(inputs))
        self._combine(whole, how)
        output.copy_(whole.view(self.size, -1)[self.rank])

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """A broadcast of which each rank keeps its part."""
        whole = torch.cat(list(inputs)) if inputs else output.new_empty(self.size * len(output))
        self.broadcast(whole, root)
        output.copy_(whole.view(self.size, -1)[self.rank])

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], longest: int) -> None:
        """An all-gather of which each rank keeps its column."""
        padded = torch.zeros(self.size, longest, dtype=inputs[0].dtype)
        for row, given in zip(padded, inputs, strict=True):
            row[: len(given)].copy_(given)
        for output, part in zip(outputs, self._gather(padded.view(-1)), strict=True):
            output.copy_(part.view(self.size, longest)[self.rank, : len(output)])

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Through memory where both share a host."""
        if to in self._home:
            self._local.send(tensor, self._home.index(to), tag)
        else:
            self._between(lambda: self._everyone.send([tensor], to, tag), "send")

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        if source in self._home:
            self._local.receive(tensor, self._home.index(source), tag)
        else:
            self._between(lambda: self._everyone.recv([tensor], source, tag), "recv")

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Only where no other rank shares this host: else there are two ways in, and no way to wait at both."""
        if self._local.size > 1:
            raise InvalidCall("recv from any source works on one host only; name the source")
        work = self._everyone.recv_anysource([tensor], tag)
        self._between(lambda: work, "recv")
        return int(work._source_rank())

    def explain(self, error: PeerLost) -> PeerLost:
        """A rank that saw another die tells all hosts; one that only sees that others are gone asks why.

        A rank that is cut off itself waits less, to tell what it knows to those that wait in its own host.
        """
        with suppress(PeerLost):  # the store may be gone as well
            if not error.seen and (known := self._store.loss(_NEWS if self._cut_off else 2 * _NEWS)):
                error = PeerLost(known)
            if error.seen or self._cut_off:
                self._store.announce(str(error))
        return error

    def close(self) -> None:
        """Leave this host's ranks and the other hosts, which notice."""
        self._local.close()
        if not self._closed:
            self._closed = True
            for group in (self._leaders, self._everyone):
                if group is not None:
                    group.abort()

    def _between(self, start: Callable[[], Work], doing: str) -> None:
        """Something that Gloo does between hosts; what it says of a lost connection is all that is known."""
        if self._closed:
            raise PeerLost("this group was closed")
        try:
            start().wait()
        except RuntimeError as error:
            self._cut_off = True
            away = ", ".join(str(name) for rank, name in enumerate(self.names) if rank not in self._home)
            raise PeerLost(
                f"another host is lost, of those with ranks {away} (during {doing}): {error}"
            ) from error

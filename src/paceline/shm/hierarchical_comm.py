"""Collectives across hosts: shared memory inside each, Gloo between their first ranks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, Work

from paceline.shm import call
from paceline.shm.barrier import PeerLost
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

    The same promises as ``LocalComm``: a call that the ranks do not agree on raises the same error on all of them.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[Sequence[int]],
        local: LocalComm,
        leaders: Any,
        everyone: Any,
        names: Sequence[int],
        store: GroupStore,
    ) -> None:
        """``hosts`` are the ranks of each, ``names`` is what errors call all ranks.

        ``leaders`` is the Gloo group of the first ranks, used by those only; ``everyone`` is that of all ranks.
        """
        self._names, self._store = names, store
        self._closed = self._cut_off = False
        self.rank, self.size = rank, sum(map(len, hosts))
        self.team_sizes = [len(ranks) for ranks in hosts]
        """Those of each host, or one rank each where memory could not be shared."""
        self._hosts, self._local, self._leaders, self._everyone = hosts, local, leaders, everyone
        self._home = next(ranks for ranks in hosts if rank in ranks)
        self._order = [rank for ranks in hosts for rank in ranks]
        self._leads = local.rank == 0

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """Shared inside this host."""
        self._agree("zeros", dtype, length)
        return self._local.zeros(length, dtype)

    def barrier(self) -> None:
        self._agree("barrier", torch.uint8, 0)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Inside each host, between the hosts, and back."""
        self._agree("all_reduce", tensor.dtype, tensor.numel(), op)
        self._combine(tensor, op)

    def _combine(self, tensor: Tensor, op: str) -> None:
        how = find_operation(op, tensor.dtype)
        self._local.reduce(tensor, 0, "sum" if how.averages else op)
        if self._leads:
            self._reduce_between(tensor, how)
        self._local.broadcast(tensor, 0)
        how.average(tensor, self.size)

    def _reduce_between(self, tensor: Tensor, how: Operation) -> None:
        # Gloo's max and min of floats compare, and so lose what is not a number; torch's keep it.
        loses = how.name in ("max", "min") and tensor.is_floating_point()
        if tensor.dtype in _GLOO_TYPES and not loses:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(how.combining_op)
            self._between(lambda: self._leaders.allreduce([tensor], options), "all_reduce")
            return
        flat = tensor.view(-1)  # Gloo only moves: each first rank combines all hosts' tensors itself
        parts = [torch.empty_like(flat) for _ in self._hosts]
        data = [part.view(torch.uint8) for part in parts]
        self._between(lambda: self._leaders.allgather([data], [flat.view(torch.uint8)]), "all_reduce")
        flat.copy_(parts[0])
        for part in parts[1:]:
            how.combine(flat, part)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Inside the root's host, between the hosts, inside the others."""
        self._agree("broadcast", tensor.dtype, tensor.numel(), root=root)
        self._spread(tensor, root)

    def _spread(self, tensor: Tensor, root: int) -> None:
        at_home = root in self._home
        if at_home:
            self._local.broadcast(tensor, self._home.index(root))
        if self._leads:
            options = BroadcastOptions()
            options.rootRank = next(index for index, ranks in enumerate(self._hosts) if root in ranks)
            data = [tensor.view(-1).view(torch.uint8)]
            self._between(lambda: self._leaders.broadcast(data, options), "broadcast")
        if not at_home:
            self._local.broadcast(tensor, 0)

    def reduce(self, tensor: Tensor, root: int, op: str = "sum") -> None:
        """An all-reduce that only the root keeps."""
        self._agree("reduce", tensor.dtype, tensor.numel(), op, root)
        copy = tensor.clone()
        self._combine(copy, op)
        if self.rank == root:
            tensor.copy_(copy)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        """Each host gathers its own part, the first ranks exchange the parts, each host spreads them."""
        fits = call.fit(outputs, tensor, self.size)
        self._agree("all_gather", tensor.dtype, tensor.numel(), fits=fits)
        for output, found in zip(outputs, self._gather(tensor.view(-1)), strict=True):
            output.view(-1).copy_(found)

    def _gather(self, flat: Tensor) -> list[Tensor]:
        block = torch.zeros(max(self.team_sizes), len(flat), dtype=flat.dtype)
        self._local.all_gather(list(block[: self._local.size]), flat)
        blocks = torch.empty(len(self._hosts), *block.shape, dtype=flat.dtype)
        if self._leads:
            parts = [part.view(torch.uint8) for part in blocks.view(len(self._hosts), -1)]
            data = [block.view(-1).view(torch.uint8)]
            self._between(lambda: self._leaders.allgather([parts], data), "all_gather")
        self._local.broadcast(blocks, 0)
        found = {
            rank: part
            for ranks, host in zip(self._hosts, blocks, strict=True)
            for rank, part in zip(ranks, host, strict=False)
        }
        return [found[rank] for rank in range(self.size)]

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
        """An all-gather that only the root keeps."""
        fits = call.fit(outputs, tensor, self.size if self.rank == root else 0)
        self._agree("gather", tensor.dtype, tensor.numel(), root=root, fits=fits)
        found = self._gather(tensor.view(-1))
        for output, part in zip(outputs, found, strict=False):
            output.view(-1).copy_(part)

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: str = "sum") -> None:
        """An all-reduce of which each rank keeps its part."""
        fits = call.fit(inputs, output, self.size)
        self._agree("reduce_scatter", output.dtype, output.numel(), op, fits=fits)
        whole = torch.cat([given.reshape(-1) for given in inputs])
        self._combine(whole, op)
        output.view(-1).copy_(whole.view(self.size, -1)[self.rank])

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """A broadcast of which each rank keeps its part."""
        fits = call.fit(inputs, output, self.size if self.rank == root else 0)
        self._agree("scatter", output.dtype, output.numel(), root=root, fits=fits)
        whole = torch.empty(self.size, output.numel(), dtype=output.dtype)
        for part, given in zip(whole, inputs, strict=False):
            part.copy_(given.reshape(-1))
        self._spread(whole, root)
        output.view(-1).copy_(whole[self.rank])

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """An all-gather of which each rank keeps its column."""
        fits = len(outputs) == len(inputs) == self.size
        self._agree("all_to_all", inputs[0].dtype if inputs else torch.uint8, 0, fits=fits)
        mine = torch.tensor([[part.numel() for part in parts] for parts in (inputs, outputs)])
        gives, takes = torch.stack(self._gather(mine.view(-1))).view(-1, 2, self.size).unbind(1)
        call.check_exchange(gives.tolist(), takes.tolist(), self._names)
        longest = int(gives.max())
        padded = torch.zeros(self.size, longest, dtype=inputs[0].dtype)
        for row, given in zip(padded, inputs, strict=True):
            row[: given.numel()].copy_(given.view(-1))
        for output, part in zip(outputs, self._gather(padded.view(-1)), strict=True):
            target = output.view(-1)
            target.copy_(part.view(self.size, longest)[self.rank, : len(target)])

    def refuse(self, problem: InvalidCall) -> NoReturn:
        call.refuse(self._agree, problem)

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Through memory where both share a host."""
        if to in self._home:
            self._local.send(tensor, self._home.index(to), tag)
        else:
            self._between(lambda: self._everyone.send([tensor], to, tag), "send")

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Through memory where both share a host."""
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
            away = ", ".join(str(self._names[rank]) for rank in self._order if rank not in self._home)
            raise PeerLost(
                f"another host is lost, of those with ranks {away} (during {doing}): {error}"
            ) from error

    def _agree(
        self, kind: str, dtype: torch.dtype, length: int, op: str = "", root: int = -1, *, fits: bool = True
    ) -> None:
        """Compare what all ranks ask for before any data moves: a host that differs would hang the others."""
        packed = bytearray(call.pack(kind, dtype, length, op, root, fits=fits))
        asked = [bytes(one.tolist()) for one in self._gather(torch.frombuffer(packed, dtype=torch.uint8))]
        call.check_agreement(
            [asked[rank] for rank in self._order], [self._names[rank] for rank in self._order]
        )
        call.check_fits(kind, fits)

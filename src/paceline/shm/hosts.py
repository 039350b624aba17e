"""Collectives across hosts: shared memory inside each, Gloo between their first ranks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, Work

from paceline.shm import call
from paceline.shm.call import Call
from paceline.shm.operations import InvalidCall, Operation, find_operation
from paceline.shm.peers import PeerLost
from paceline.shm.register import Register
from paceline.shm.team import Team

_GLOO = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64,
)  # fmt: skip
"""Types that Gloo can calculate with."""


_NEWS = 1.0
"""Seconds to wait for another host to say whom it lost."""


class Hosts:
    """Each host's ranks are a team, its first rank talks to the other hosts' first ranks.

    The same promises as ``Team``: a call that the ranks do not agree on raises the same ``InvalidCall`` on all of them.
    """

    def __init__(
        self,
        rank: int,
        teams: Sequence[Sequence[int]],
        team: Team,
        leaders: Any,
        everybody: Any,
        names: Sequence[int],
        register: Register,
    ) -> None:
        """``teams`` are the ranks of each host, ``names`` is what errors call all ranks.

        ``leaders`` is the Gloo group of their first ranks, used by those only; ``everybody`` is that of all ranks.
        """
        self._names, self._register = names, register
        self._closed = self._cut_off = False
        self.rank, self.size = rank, sum(map(len, teams))
        self._teams, self._team, self._leaders, self._everybody = teams, team, leaders, everybody
        self._home = next(index for index, ranks in enumerate(teams) if rank in ranks)
        self._order = [rank for ranks in teams for rank in ranks]
        self._most = max(map(len, teams))

    @property
    def teams(self) -> list[int]:
        """Those of each host, or one rank each where memory could not be shared."""
        return [len(ranks) for ranks in self._teams]

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """Shared inside this host."""
        self._agree("zeros", dtype, length)
        return self._team.zeros(length, dtype)

    def barrier(self) -> None:
        """Agreeing needs everybody."""
        self._agree("barrier", torch.uint8, 0)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Inside each host, between the hosts, and back."""
        self._agree("all_reduce", tensor.dtype, tensor.numel(), op)
        self._combine(tensor, op)

    def _combine(self, tensor: Tensor, op: str) -> None:
        how = find_operation(op, tensor.dtype)
        self._team.reduce(tensor, 0, "sum" if how.averages else op)
        if self._leads:
            self._reduce_between(tensor, how)
        self._team.broadcast(tensor, 0)
        how.average(tensor, self.size)

    def _reduce_between(self, tensor: Tensor, how: Operation) -> None:
        if not _gloo_can(how, tensor.dtype):
            self._combine_gathered(tensor.view(-1), how)
            return
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(how.combining_op)
        self._between(lambda: self._leaders.allreduce([tensor], options), "all_reduce")

    def _combine_gathered(self, flat: Tensor, how: Operation) -> None:
        """Where Gloo only moves: each first rank gets all hosts' tensors and combines them itself."""
        parts = [torch.empty_like(flat) for _ in self._teams]
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
        source = next(index for index, ranks in enumerate(self._teams) if root in ranks)
        if source == self._home:
            self._team.broadcast(tensor, self._teams[source].index(root))
        if self._leads:
            options = BroadcastOptions()
            options.rootRank = source
            data = [tensor.view(-1).view(torch.uint8)]
            self._between(lambda: self._leaders.broadcast(data, options), "broadcast")
        if source != self._home:
            self._team.broadcast(tensor, 0)

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
        for rank, found in zip(self._order, self._gather(tensor.view(-1)), strict=True):
            outputs[rank].view(-1).copy_(found)

    def _gather(self, flat: Tensor) -> list[Tensor]:
        """Everybody's tensor, host by host."""
        block = torch.zeros(self._most, len(flat), dtype=flat.dtype)
        self._team.all_gather(list(block[: self._team.size]), flat)
        blocks = torch.empty(len(self._teams), *block.shape, dtype=flat.dtype)
        if self._leads:
            parts = [part.view(torch.uint8) for part in blocks.view(len(self._teams), -1)]
            data = [block.view(-1).view(torch.uint8)]
            self._between(lambda: self._leaders.allgather([parts], data), "all_gather")
        self._team.broadcast(blocks, 0)
        return [part for ranks, host in zip(self._teams, blocks, strict=True) for part in host[: len(ranks)]]

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
        """An all-gather that only the root keeps."""
        fits = call.fit(outputs, tensor, self.size if self.rank == root else 0)
        self._agree("gather", tensor.dtype, tensor.numel(), root=root, fits=fits)
        found = self._gather(tensor.view(-1))
        if self.rank == root:
            for rank, part in zip(self._order, found, strict=True):
                outputs[rank].view(-1).copy_(part)

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
        longest = self._match(outputs, inputs)
        mine = torch.zeros(self.size, longest, dtype=inputs[0].dtype)
        for row, given in zip(mine, inputs, strict=True):
            row[: given.numel()].copy_(given.view(-1))
        for rank, part in zip(self._order, self._gather(mine.view(-1)), strict=True):
            target = outputs[rank].view(-1)
            target.copy_(part.view(self.size, longest)[self.rank, : len(target)])

    def _match(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> int:
        """Tell everybody what this rank gives and takes; the longest part that anybody gives."""
        fits = len(outputs) == len(inputs) == self.size
        self._agree("all_to_all", inputs[0].dtype if inputs else torch.uint8, 0, fits=fits)
        mine = torch.tensor([[part.numel() for part in parts] for parts in (inputs, outputs)])
        told = dict(zip(self._order, self._gather(mine.view(-1)), strict=True))
        gives, takes = torch.stack([told[rank] for rank in range(self.size)]).view(-1, 2, self.size).unbind(1)
        call.check_exchange(gives.tolist(), takes.tolist(), self._names)
        return int(gives.max())

    def refuse(self, problem: InvalidCall) -> NoReturn:
        """As in a team: meet the others and raise: what the ranks differ in, or the problem of all."""
        try:
            self._agree(call.UNKNOWN, torch.uint8, 0)
        except InvalidCall as error:
            raise error from problem
        raise problem

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Through memory where both share a host."""
        if to in self._teams[self._home]:
            self._team.send(tensor, self._teams[self._home].index(to), tag)
        else:
            self._between(lambda: self._everybody.send([tensor], to, tag), "send")

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Through memory where both share a host."""
        if source in self._teams[self._home]:
            self._team.receive(tensor, self._teams[self._home].index(source), tag)
        else:
            self._between(lambda: self._everybody.recv([tensor], source, tag), "recv")

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Only where nobody shares this host: else there are two ways in, and no way to wait at both."""
        if self._team.size > 1:
            raise InvalidCall("recv from any source works on one host only; name the source")
        work = self._everybody.recv_anysource([tensor], tag)
        self._between(lambda: work, "recv")
        return int(work._source_rank())

    def explain(self, error: PeerLost) -> PeerLost:
        """Who sees a rank die tells all hosts; who only sees that others are gone asks why."""
        with suppress(PeerLost):  # the store may be gone as well
            if not error.seen and (known := self._register.loss(self._patience)):
                error = PeerLost(known)
            if error.seen or self._cut_off:
                self._register.announce(str(error))
        return error

    @property
    def _patience(self) -> float:
        """Who is cut off itself waits less, to tell what it knows to those who wait in its own host."""
        return _NEWS if self._cut_off else 2 * _NEWS

    def close(self) -> None:
        """Leave this host's team and the other hosts, who are told."""
        self._team.close()
        if not self._closed:
            self._closed = True
            for group in (self._leaders, self._everybody):
                if group is not None:
                    group.abort()

    @property
    def _leads(self) -> bool:
        return self._team.rank == 0

    def _between(self, start: Callable[[], Work], doing: str) -> None:
        """Something that Gloo does between hosts; what it says of a lost connection is all that is known."""
        if self._closed:
            raise PeerLost("this group was closed")
        try:
            start().wait()
        except RuntimeError as error:
            self._cut_off = True
            away = ", ".join(
                str(self._names[rank]) for rank in self._order if rank not in self._teams[self._home]
            )
            raise PeerLost(
                f"another host is lost, of those with ranks {away} (during {doing}): {error}"
            ) from error

    def _agree(
        self, kind: str, dtype: torch.dtype, length: int, op: str = "", root: int = -1, *, fits: bool = True
    ) -> None:
        """Compare what all ranks ask for before any data moves: a host that differs would hang the others."""
        mine = Call(kind, dtype, length if fits else call.MISFIT, op, root)
        packed = torch.frombuffer(bytearray(mine.pack()), dtype=torch.uint8)
        first, *others = zip(self._order, map(_unpack, self._gather(packed)), strict=True)
        for rank, other in others:
            if other != first[1]:
                raise InvalidCall(
                    call.disagreement(self._names[first[0]], first[1], self._names[rank], other)
                )
        if not fits:
            raise call.misfit(kind)


def _gloo_can(how: Operation, dtype: torch.dtype) -> bool:
    """Gloo's max and min of floats compare, and so lose what is not a number; torch's keep it."""
    return dtype in _GLOO and not (how.name in ("max", "min") and dtype.is_floating_point)


def _unpack(packed: Tensor) -> Call:
    return call.unpack(bytes(packed.tolist()))

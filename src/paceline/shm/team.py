"""Collectives among the ranks of one host, through the memory that they share.

Every one of them is a stream of pieces: all ranks lay a piece of what they have into their slots, meet once, and
read what they need from the others' slots. Sums of tensors that live in shared memory need no slot at all.
"""

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import NoReturn

import torch
from torch import Tensor

from paceline.shm import call
from paceline.shm.allocations import Allocations
from paceline.shm.operations import InvalidCall, Operation, find_operation
from paceline.shm.peers import PeerLost
from paceline.shm.routine import MOST, Routine, make_routine
from paceline.shm.table import PIECE, Table

ALL_READ_ALL = 2**15
"""Bytes up to which every rank combines all slots by itself, at the price of one meeting instead of two."""
IN_CACHE = 2**19
"""Bytes that are combined at a time in place, so that copying the result finds it in the cache."""

IN_PLACE_FROM = 2**17
"""Bytes from which tensors in shared memory are combined in place; smaller ones pass through slots, which needs one
meeting instead of two."""
SOON, LATER = 2e-4, 5e-3
"""Seconds between looks for a message from anybody, at first and after a while."""


class Team:
    """The ranks of a group that share a host. All must make the same calls in the same order, one at a time.

    Tensors are contiguous and on the CPU. A call that the ranks do not agree on raises the same error on all and
    leaves the team usable; a rank that dies raises ``PeerLost`` on the others, for this call and for ever after.
    """

    def __init__(self, table: Table, allocations: Allocations) -> None:
        self.table, self.allocations = table, allocations
        self.rank, self.size = table.rank, table.size
        self._small = IN_PLACE_FROM if self.size == 2 else ALL_READ_ALL
        self._routines: dict[tuple[torch.dtype, int, str], Routine] = {}
        self._outboxes = [table.outbox(other) for other in range(self.size)]
        self._inboxes = [table.inbox(other) for other in range(self.size)]

    @property
    def teams(self) -> list[int]:
        """All of them share."""
        return [self.size]

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in shared memory, one on each rank; sums of it, or of parts of it, happen in place."""
        self._agree("zeros", dtype, length)
        return self.allocations.zeros(length, dtype)

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._agree("barrier", torch.uint8, 0)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Make every rank's tensor the combination of all; the result is the same to the last bit on all ranks."""
        if self.size == 1:
            find_operation(op, tensor.dtype)
            return
        flat = tensor.view(-1)
        like = (flat.dtype, flat.numel(), op)
        if like in self._routines:
            self._routines[like].carry_out(self.table, flat)
            return
        where, offset = self.allocations.find(flat)
        if flat.nbytes <= IN_PLACE_FROM:
            where, offset = call.ELSEWHERE, 0
        if where == call.ELSEWHERE:
            self._lay(flat[: PIECE // flat.itemsize])
        packed = call.pack("all_reduce", flat.dtype, len(flat), op, -1, where, offset)
        asked = self._meet_over(packed)
        how = find_operation(op, flat.dtype)
        if flat.nbytes <= self._small and len(self._routines) < MOST:
            self._routines[like] = make_routine(self.table, flat, packed, how)
        places = [call.place_of(other) for other in asked]
        elsewhere = [rank for rank, (where, _) in enumerate(places) if where == call.ELSEWHERE]
        if not elsewhere:
            self._in_place(flat, how, places)
        else:
            laid = 1 if len(elsewhere) == self.size else 0
            everybody = self.size == 2 or flat.nbytes <= ALL_READ_ALL
            (self._everybody_combines if everybody else self._in_shares)(flat, how, laid)
        how.average(flat, self.size)

    def _lay(self, part: Tensor) -> None:
        """Lay a piece into this rank's slot, for the next meeting."""
        self.table.slots(part.dtype)[self.table.turn][self.rank][: len(part)].copy_(part)

    def _everybody_combines(self, flat: Tensor, how: Operation, laid: int) -> None:
        """One meeting a piece; all combine in the order of ranks, so that all get the same.

        So many pieces are ``laid`` and met over already.
        """
        table, slots = self.table, self.table.slots(flat.dtype)
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= laid:
                self._lay(part)
                table.meeting.meet()
            turn = slots[table.meeting.beat & 1]
            self._combine_all([slot[: len(part)] for slot in turn[: self.size]], how, part)

    def _in_shares(self, flat: Tensor, how: Operation, laid: int) -> None:
        """Each rank combines its share of every piece; so many pieces are ``laid`` and met over already.

        One meeting a piece: after it, the piece before is taken out, this one combined and the next laid down.
        """
        table, slots = self.table, self.table.slots(flat.dtype)
        before = flat[:0]
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= laid:
                self._lay(part)
                table.meeting.meet()
            turn = slots[table.meeting.beat & 1]
            before.copy_(slots[table.turn][self.size][: len(before)])
            start, stop = share(len(part), self.rank, self.size)
            self._combine_all(
                [slot[start:stop] for slot in turn[: self.size]], how, turn[self.size][start:stop]
            )
            before = part
        done = slots[table.meeting.beat & 1][self.size]
        table.meeting.meet()
        before.copy_(done[: len(before)])

    @staticmethod
    def _combine_all(parts: Sequence[Tensor], how: Operation, out: Tensor) -> None:
        how.into(parts[0], parts[1], out=out)
        for part in parts[2:]:
            how.into(out, part, out=out)

    def _in_place(self, flat: Tensor, how: Operation, places: Sequence[tuple[int, int]]) -> None:
        """Each rank combines its share of all ranks' tensors and writes the result to all of them."""
        start, stop = share(len(flat), self.rank, self.size)
        whole = [
            self.allocations.look(where, rank, flat, offset) for rank, (where, offset) in enumerate(places)
        ]
        pieces = [cut(tensor[start:stop], IN_CACHE) for tensor in whole]
        others = [rank for rank in range(self.size) if rank != self.rank]
        scratch = torch.empty(IN_CACHE // flat.itemsize, dtype=flat.dtype)
        for parts in zip(*pieces, strict=True):
            if self.size == 2:
                how.into(parts[0], parts[1], out=parts[self.rank])
                parts[others[0]].copy_(parts[self.rank])
            else:
                result = scratch[: len(parts[0])]
                self._combine_all(parts, how, result)
                for part in parts:
                    part.copy_(result)
        self.table.meeting.meet()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Make every rank's tensor that of the root."""
        flat = tensor.view(-1)
        self._agree("broadcast", flat.dtype, len(flat), root=root)
        slots, table = self.table.slots(flat.dtype), self.table
        for part in cut(flat, PIECE):
            slot = slots[table.turn][root][: len(part)]
            if self.rank == root:
                slot.copy_(part)
            table.meeting.meet()
            if self.rank != root:
                part.copy_(slot)

    def reduce(self, tensor: Tensor, root: int, op: str = "sum") -> None:
        """Make the root's tensor the combination of all; the others' stay as they were."""
        flat = tensor.view(-1)
        self._agree("reduce", flat.dtype, len(flat), op, root)
        how = find_operation(op, flat.dtype)
        if self.size == 1:
            return
        slots, table = self.table.slots(flat.dtype), self.table
        for part in cut(flat, PIECE):
            turn = [slot[: len(part)] for slot in slots[table.turn][: self.size]]
            turn[self.rank].copy_(part)
            table.meeting.meet()
            if self.rank == root:
                self._combine_all(turn, how, part)
        if self.rank == root:
            how.average(flat, self.size)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        """Fill ``outputs`` with every rank's tensor, by rank."""
        fits = call.fit(outputs, tensor, self.size)
        self._agree("all_gather", tensor.dtype, tensor.numel(), fits=fits)
        self._gather([output.view(-1) for output in outputs], tensor.view(-1))

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
        """The same, on the root only; the others give no outputs."""
        fits = call.fit(outputs, tensor, self.size if self.rank == root else 0)
        self._agree("gather", tensor.dtype, tensor.numel(), root=root, fits=fits)
        self._gather([output.view(-1) for output in outputs], tensor.view(-1))

    def _gather(self, outputs: Sequence[Tensor], flat: Tensor) -> None:
        slots, table, step = self.table.slots(flat.dtype), self.table, PIECE // flat.itemsize
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            turn = slots[table.turn]
            turn[self.rank][: len(part)].copy_(part)
            table.meeting.meet()
            for slot, output in zip(turn, outputs, strict=False):
                output[start : start + step].copy_(slot[: len(part)])

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: str = "sum") -> None:
        """Combine everybody's ``inputs[r]`` and give the result to rank r, in ``output``."""
        fits = call.fit(inputs, output, self.size)
        self._agree("reduce_scatter", output.dtype, output.numel(), op, fits=fits)
        how, result = find_operation(op, output.dtype), output.view(-1)

        def take(parts: Sequence[Tensor], start: int, stop: int) -> None:
            if self.size == 1:
                result[start:stop].copy_(parts[0])
            else:
                self._combine_all(parts, how, result[start:stop])

        self._cross([given.view(-1) for given in inputs], len(result), take)
        how.average(result, self.size)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Give ``inputs[r]`` to rank r, and get what rank r gives in ``outputs[r]``; of any lengths that match."""
        flat = [output.view(-1) for output in outputs]
        longest = self._match([len(output) for output in flat], inputs)

        def take(parts: Sequence[Tensor], start: int, stop: int) -> None:
            for output, part in zip(flat, parts, strict=True):
                target = output[start:stop]
                target.copy_(part[: len(target)])

        self._cross([given.view(-1) for given in inputs], longest, take)

    def _match(self, takes: Sequence[int], inputs: Sequence[Tensor]) -> int:
        """Tell everybody what this rank gives and takes; the longest part that anybody gives."""
        mine = torch.tensor([[given.numel() for given in inputs], takes] if len(inputs) == len(takes) else [])
        fits = mine.numel() == 2 * self.size
        told = [slot[: 2 * self.size] for slot in self.table.slots(torch.int64)[self.table.turn][: self.size]]
        if fits:
            told[self.rank].copy_(mine.view(-1))
        self._agree("all_to_all", inputs[0].dtype if inputs else torch.uint8, 0, fits=fits)
        gives, expects = torch.stack(told).view(self.size, 2, self.size).unbind(1)
        call.check_exchange(gives.tolist(), expects.tolist(), self.table.names)
        return int(gives.max())

    def _cross(
        self, inputs: Sequence[Tensor], length: int, take: Callable[[Sequence[Tensor], int, int], None]
    ) -> None:
        """Every slot holds a part for each rank; everybody takes its own part of all slots."""
        slots, table = self.table.slots(inputs[0].dtype), self.table
        step = PIECE // inputs[0].itemsize // self.size
        for start in range(0, length, step):
            stop = min(start + step, length)
            turn = slots[table.turn]
            for rank, given in enumerate(inputs):
                part = given[start:stop]
                turn[self.rank][rank * step : rank * step + len(part)].copy_(part)
            table.meeting.meet()
            mine = slice(self.rank * step, self.rank * step + stop - start)
            take([slot[mine] for slot in turn[: self.size]], start, stop)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """Give the root's ``inputs[r]`` to rank r, in ``output``."""
        fits = call.fit(inputs, output, self.size if self.rank == root else 0)
        self._agree("scatter", output.dtype, output.numel(), root=root, fits=fits)
        result, flat = output.view(-1), [given.view(-1) for given in inputs]
        slots, table = self.table.slots(output.dtype), self.table
        step = PIECE // output.itemsize
        for start in range(0, len(result), step):
            stop = min(start + step, len(result))
            turn = slots[table.turn]
            for rank, given in enumerate(flat):
                turn[rank][: stop - start].copy_(given[start:stop])
            table.meeting.meet()
            result[start:stop].copy_(turn[self.rank][: stop - start])

    def refuse(self, problem: InvalidCall) -> NoReturn:
        """Meet the others, whatever they ask for, and raise: what the ranks differ in, or the problem of all."""
        try:
            self._agree(call.UNKNOWN, torch.uint8, 0)
        except InvalidCall as error:
            raise error from problem
        raise problem

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Lay a message into the box of another rank; return when all of it is there."""
        self._outboxes[to].send(tensor, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Take a message out of the box of another rank."""
        self._inboxes[source].receive(tensor, tag)

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Take the next message out of any box, and say whose it was."""
        begun, pause, problem = monotonic(), SOON, None
        while True:
            for source, box in enumerate(self._inboxes):
                if box.offer(tensor, tag):
                    return source
            if problem is not None:
                raise problem
            try:
                self.table.check_senders(begun)
                sleep(pause)
                pause = min(LATER, 1.5 * pause)
            except PeerLost as error:
                problem = error  # what was sent before that is still in the boxes

    def explain(self, error: PeerLost) -> PeerLost:
        """On one host everybody sees the same."""
        return error

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told."""
        self.table.close()

    def _agree(
        self, kind: str, dtype: torch.dtype, length: int, op: str = "", root: int = -1, *, fits: bool = True
    ) -> None:
        asked = length if fits else call.MISFIT
        self._meet_over(call.pack(kind, dtype, asked, op, root, call.ELSEWHERE, 0))
        if not fits:
            raise call.misfit(kind)

    def _meet_over(self, packed: bytes) -> list[bytes]:
        table = self.table
        table.ask(packed)
        table.meeting.doing = call.unpack(packed).kind
        table.meeting.meet()
        return table.answers(packed)


def cut(flat: Tensor, size: int) -> list[Tensor]:
    """Consecutive parts of so many bytes; the last may be smaller."""
    step = size // flat.itemsize
    return [flat[start : start + step] for start in range(0, len(flat), step)]


def share(length: int, rank: int, size: int) -> tuple[int, int]:
    """Which elements a rank combines: parts of equal size up to a cache line's worth."""
    step = -(-length // size // 64) * 64 or 64
    start = min(length, rank * step)
    return start, min(length, start + step)

"""Collectives among the ranks of one host, through the memory that they share.

Every one of them is a stream of pieces: all ranks write a piece of what they have into their slots, wait for each
other once, and read what they need from the others' slots. Sums of tensors in shared memory need no slot at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import NoReturn

import torch
from torch import Tensor

from paceline.shm import call
from paceline.shm.arena import PIECE, SharedTensors, SlotArena
from paceline.shm.barrier import PeerLost
from paceline.shm.operations import InvalidCall, Operation, find_operation

ALL_READ_ALL = 2**15
"""Bytes up to which every rank combines all slots by itself, at the price of one barrier instead of two."""
IN_CACHE = 2**19
"""Bytes that are combined at a time in place, so that copying the result finds it in the cache."""
IN_PLACE_FROM = 2**17
"""Bytes from which tensors in shared memory are combined in place; smaller ones pass through slots, which needs one
barrier instead of two."""
MOST_PLANS = 256
_SOON, _LATER = 2e-4, 5e-3
"""Seconds between looks for a message from any source, at first and after a while."""


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """All of a small all-reduce that depends on its type, length and operation only."""

    packed: bytes
    slots: tuple[list[Tensor], ...]
    """This length's parts of all slots, by turn and rank."""
    how: Operation

    def run(self, arena: SlotArena, flat: Tensor) -> None:
        """One barrier, and every rank combines all slots in the order of ranks."""
        slots, into = self.slots[arena.turn], self.how.into
        slots[arena.rank].copy_(flat)
        arena.ask(self.packed)
        arena.barrier.doing = "all_reduce"
        arena.barrier.wait()
        arena.expect(self.packed)
        into(slots[0], slots[1], out=flat)
        for slot in slots[2:]:
            into(flat, slot, out=flat)
        self.how.average(flat, arena.size)


class LocalComm:
    """The ranks of a group that share a host. All must make the same calls in the same order, one at a time.

    Tensors are contiguous and on the CPU. A call that the ranks do not agree on raises the same error on all and
    leaves the group usable; a rank that dies raises ``PeerLost`` on the others, for this call and for ever after.
    """

    def __init__(self, arena: SlotArena, tensors: SharedTensors) -> None:
        self.arena, self.tensors = arena, tensors
        self.rank, self.size = arena.rank, arena.size
        self.team_sizes = [self.size]
        """How many ranks share memory, team by team."""
        self._small = IN_PLACE_FROM if self.size == 2 else ALL_READ_ALL
        self._plans: dict[tuple[torch.dtype, int, str], CachedPlan] = {}
        self._outboxes = [arena.outbox(other) for other in range(self.size)]
        self._inboxes = [arena.inbox(other) for other in range(self.size)]

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in shared memory, one on each rank; sums of it, or of parts of it, happen in place."""
        self._agree("zeros", dtype, length)
        return self.tensors.zeros(length, dtype)

    def barrier(self) -> None:
        self._agree("barrier", torch.uint8, 0)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Make every rank's tensor the combination of all; the result is the same to the last bit on all ranks."""
        if self.size == 1:
            find_operation(op, tensor.dtype)
            return
        flat = tensor.view(-1)
        like = (flat.dtype, flat.numel(), op)
        if like in self._plans:
            self._plans[like].run(self.arena, flat)
            return
        where, offset = self.tensors.find(flat)
        if flat.nbytes <= IN_PLACE_FROM:
            where, offset = call.ELSEWHERE, 0
        if where == call.ELSEWHERE:
            self._write(flat[: PIECE // flat.itemsize])
        packed = call.pack("all_reduce", flat.dtype, len(flat), op, -1, where, offset)
        asked = self._meet("all_reduce", packed)
        how = find_operation(op, flat.dtype)
        if flat.nbytes <= self._small and len(self._plans) < MOST_PLANS:
            slots = self.arena.slots(flat.dtype)
            parts = tuple([slot[: len(flat)] for slot in turn[: self.size]] for turn in slots)
            self._plans[like] = CachedPlan(packed, parts, how)
        places = [call.place_of(other) for other in asked]
        elsewhere = sum(where == call.ELSEWHERE for where, _ in places)
        if not elsewhere:
            self._in_place(flat, how, places)
        else:
            written = 1 if elsewhere == self.size else 0
            all_combine = self.size == 2 or flat.nbytes <= ALL_READ_ALL
            (self._all_combine if all_combine else self._in_shares)(flat, how, written)
        how.average(flat, self.size)

    def _write(self, part: Tensor) -> None:
        """Write a piece into this rank's slot, for the next barrier."""
        self.arena.slots(part.dtype)[self.arena.turn][self.rank][: len(part)].copy_(part)

    def _all_combine(self, flat: Tensor, how: Operation, written: int) -> None:
        """One barrier a piece; all combine in the order of ranks, so that all get the same.

        So many pieces are ``written``, with their barrier passed already.
        """
        arena, slots = self.arena, self.arena.slots(flat.dtype)
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= written:
                self._write(part)
                arena.barrier.wait()
            turn = slots[arena.barrier.beat & 1]
            _combine([slot[: len(part)] for slot in turn[: self.size]], how, part)

    def _in_shares(self, flat: Tensor, how: Operation, written: int) -> None:
        """Each rank combines its share of every piece; so many pieces are ``written`` already.

        One barrier a piece: after it, the piece before is taken out, this one combined and the next written.
        """
        arena, slots = self.arena, self.arena.slots(flat.dtype)
        before = flat[:0]
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= written:
                self._write(part)
                arena.barrier.wait()
            turn = slots[arena.barrier.beat & 1]
            before.copy_(slots[arena.turn][self.size][: len(before)])
            mine = slice(*share(len(part), self.rank, self.size))
            _combine([slot[mine] for slot in turn[: self.size]], how, turn[self.size][mine])
            before = part
        done = slots[arena.barrier.beat & 1][self.size]
        arena.barrier.wait()
        before.copy_(done[: len(before)])

    def _in_place(self, flat: Tensor, how: Operation, places: Sequence[tuple[int, int]]) -> None:
        """Each rank combines its share of all ranks' tensors and writes the result to all of them."""
        start, stop = share(len(flat), self.rank, self.size)
        whole = [self.tensors.view(where, rank, flat, offset) for rank, (where, offset) in enumerate(places)]
        pieces = [cut(tensor[start:stop], IN_CACHE) for tensor in whole]
        scratch = torch.empty(IN_CACHE // flat.itemsize, dtype=flat.dtype)
        for parts in zip(*pieces, strict=True):
            if self.size == 2:
                how.into(parts[0], parts[1], out=parts[self.rank])
                parts[1 - self.rank].copy_(parts[self.rank])
            else:
                result = scratch[: len(parts[0])]
                _combine(parts, how, result)
                for part in parts:
                    part.copy_(result)
        self.arena.barrier.wait()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Make every rank's tensor that of the root."""
        flat = tensor.view(-1)
        self._agree("broadcast", flat.dtype, len(flat), root=root)
        slots, arena = self.arena.slots(flat.dtype), self.arena
        for part in cut(flat, PIECE):
            slot = slots[arena.turn][root][: len(part)]
            if self.rank == root:
                slot.copy_(part)
            arena.barrier.wait()
            if self.rank != root:
                part.copy_(slot)

    def reduce(self, tensor: Tensor, root: int, op: str = "sum") -> None:
        """Make the root's tensor the combination of all; the others' stay as they were."""
        flat = tensor.view(-1)
        self._agree("reduce", flat.dtype, len(flat), op, root)
        how = find_operation(op, flat.dtype)
        if self.size == 1:
            return
        slots, arena = self.arena.slots(flat.dtype), self.arena
        for part in cut(flat, PIECE):
            turn = [slot[: len(part)] for slot in slots[arena.turn][: self.size]]
            turn[self.rank].copy_(part)
            arena.barrier.wait()
            if self.rank == root:
                _combine(turn, how, part)
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
        slots, arena, step = self.arena.slots(flat.dtype), self.arena, PIECE // flat.itemsize
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            turn = slots[arena.turn]
            turn[self.rank][: len(part)].copy_(part)
            arena.barrier.wait()
            for slot, output in zip(turn, outputs, strict=False):
                output[start : start + step].copy_(slot[: len(part)])

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: str = "sum") -> None:
        """Combine all ranks' ``inputs[r]`` and give the result to rank r, in ``output``."""
        fits = call.fit(inputs, output, self.size)
        self._agree("reduce_scatter", output.dtype, output.numel(), op, fits=fits)
        how, result = find_operation(op, output.dtype), output.view(-1)

        def take(parts: Sequence[Tensor], start: int, stop: int) -> None:
            if self.size == 1:
                result[start:stop].copy_(parts[0])
            else:
                _combine(parts, how, result[start:stop])

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
        """Tell all ranks what this one gives and takes; returns the length of the longest part that any gives."""
        mine = torch.tensor([[given.numel() for given in inputs], takes] if len(inputs) == len(takes) else [])
        fits = mine.numel() == 2 * self.size
        slots = [slot[: 2 * self.size] for slot in self.arena.slots(torch.int64)[self.arena.turn]][
            : self.size
        ]
        if fits:
            slots[self.rank].copy_(mine.view(-1))
        self._agree("all_to_all", inputs[0].dtype if inputs else torch.uint8, 0, fits=fits)
        gives, expects = torch.stack(slots).view(self.size, 2, self.size).unbind(1)
        call.check_exchange(gives.tolist(), expects.tolist(), self.arena.names)
        return int(gives.max())

    def _cross(
        self, inputs: Sequence[Tensor], length: int, take: Callable[[Sequence[Tensor], int, int], None]
    ) -> None:
        """Every slot holds a part for each rank; each rank takes its own part of all slots."""
        slots, arena = self.arena.slots(inputs[0].dtype), self.arena
        step = PIECE // inputs[0].itemsize // self.size
        for start in range(0, length, step):
            stop = min(start + step, length)
            turn = slots[arena.turn]
            for rank, given in enumerate(inputs):
                part = given[start:stop]
                turn[self.rank][rank * step : rank * step + len(part)].copy_(part)
            arena.barrier.wait()
            mine = slice(self.rank * step, self.rank * step + stop - start)
            take([slot[mine] for slot in turn[: self.size]], start, stop)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """Give the root's ``inputs[r]`` to rank r, in ``output``."""
        fits = call.fit(inputs, output, self.size if self.rank == root else 0)
        self._agree("scatter", output.dtype, output.numel(), root=root, fits=fits)
        result, flat = output.view(-1), [given.view(-1) for given in inputs]
        slots, arena = self.arena.slots(output.dtype), self.arena
        step = PIECE // output.itemsize
        for start in range(0, len(result), step):
            stop = min(start + step, len(result))
            turn = slots[arena.turn]
            for rank, given in enumerate(flat):
                turn[rank][: stop - start].copy_(given[start:stop])
            arena.barrier.wait()
            result[start:stop].copy_(turn[self.rank][: stop - start])

    def refuse(self, problem: InvalidCall) -> NoReturn:
        """Take part in the next call, whatever the others ask for, only to say that this rank cannot: all raise."""
        call.refuse(self._agree, problem)

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        """Return when the tensor has left. Several threads may send, each to another rank."""
        self._outboxes[to].send(tensor, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        """Return when the tensor is filled. Several threads may receive, each from another rank."""
        self._inboxes[source].receive(tensor, tag)

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        """Return when the tensor is filled with a message of any rank, and say of which."""
        begun, pause, problem = monotonic(), _SOON, None
        while True:
            for source, box in enumerate(self._inboxes):
                if box.offer(tensor, tag):
                    return source
            if problem is not None:
                raise problem
            try:
                self.arena.check_senders(begun)
                sleep(pause)
                pause = min(_LATER, 1.5 * pause)
            except PeerLost as error:
                problem = error  # what was sent before that is still in the boxes

    def explain(self, error: PeerLost) -> PeerLost:
        """On one host all ranks see the same."""
        return error

    def close(self) -> None:
        """Leave; ranks that still wait for this one notice."""
        self.arena.close()

    def _agree(
        self, kind: str, dtype: torch.dtype, length: int, op: str = "", root: int = -1, *, fits: bool = True
    ) -> None:
        self._meet(kind, call.pack(kind, dtype, length, op, root, fits=fits))
        call.check_fits(kind, fits)

    def _meet(self, kind: str, packed: bytes) -> list[bytes]:
        arena = self.arena
        arena.ask(packed)
        arena.barrier.doing = kind
        arena.barrier.wait()
        return arena.answers(packed)


def _combine(parts: Sequence[Tensor], how: Operation, out: Tensor) -> None:
    how.into(parts[0], parts[1], out=out)
    for part in parts[2:]:
        how.into(out, part, out=out)


def cut(flat: Tensor, size: int) -> list[Tensor]:
    """Consecutive parts of so many bytes; the last may be smaller."""
    step = size // flat.itemsize
    return [flat[start : start + step] for start in range(0, len(flat), step)]


def share(length: int, rank: int, size: int) -> tuple[int, int]:
    """Which elements a rank combines: parts of equal size up to a cache line's worth."""
    step = -(-length // size // 64) * 64 or 64
    start = min(length, rank * step)
    return start, min(length, start + step)

"""Collectives among the ranks of one host, through the memory that they share.

Every one of them is a stream of pieces: all ranks write a piece of what they have into their slots, wait for each
other once, and read what they need from the others' slots. Sums of tensors in shared memory need no slot at all.
"""

from collections.abc import Iterator, Sequence
from time import monotonic, sleep

import torch
from torch import Tensor

from paceline.shm.arena import PIECE, SharedTensors, SlotArena
from paceline.shm.barrier import PeerLost
from paceline.shm.call import ELSEWHERE, Call, Tensors, check_agreement, place_of
from paceline.shm.operations import Operation, find_operation

ALL_READ_ALL = 2**15
"""Bytes up to which every rank combines all slots by itself, at the price of one barrier instead of two."""
IN_CACHE = 2**19
"""Bytes that are combined at a time in place, so that copying the result finds it in the cache."""
IN_PLACE_FROM = 2**17
"""Bytes from which tensors in shared memory are combined in place; for smaller ones, slots need a barrier less."""
MOST_PLANS = 256
_SOON, _LATER = 2e-4, 5e-3
"""Seconds between looks for a message from any source, at first and after a while."""


class LocalComm:
    """The ranks of a group that share a host.

    A call that the ranks do not agree on raises the same error on all and leaves the group usable; a rank that dies
    raises ``PeerLost`` on the others, for this call and for ever after.
    """

    def __init__(self, arena: SlotArena, tensors: SharedTensors) -> None:
        self.arena, self.tensors, self.names = arena, tensors, arena.names
        self.rank, self.size = arena.rank, arena.size
        self.team_sizes = [self.size]
        """How many ranks share memory, team by team."""
        self._barrier = arena.barrier
        self._small = IN_PLACE_FROM if self.size == 2 else ALL_READ_ALL
        self._plans: dict[tuple[torch.dtype, int, str], tuple[bytes, list[list[Tensor]], Operation]] = {}
        """Of small all-reduces: the request, this length's parts of all slots by turn and rank, and the operation."""
        self._outboxes = [arena.box(self.rank, other) for other in range(self.size)]
        self._inboxes = [arena.box(other, self.rank) for other in range(self.size)]

    def agree(self, call: Call) -> None:
        self._barrier.doing = call.kind
        check_agreement(self.arena.exchange(call.pack(self.rank, self.size)), self.names)

    def zeros(self, like: Tensor) -> Tensor:
        self.agree(Call("zeros", [like]))
        return self.tensors.zeros(len(like), like.dtype)

    def all_reduce(self, call: Call) -> None:
        """The result is the same to the last bit on all ranks, which agree at the barrier of the first piece."""
        flat, arena = call.outputs[0], self.arena
        like = (flat.dtype, flat.numel(), call.op)
        self._barrier.doing = "all_reduce"
        if self.size == 1:
            find_operation(call.op, flat.dtype)
            return
        if like in self._plans:
            packed, turns, how = self._plans[like]
            slots = turns[arena.turn]
            slots[self.rank].copy_(flat)
            asked = arena.exchange(packed)
            if asked.count(packed) < self.size:
                check_agreement(asked, self.names)
            _combine(slots, how, flat)
            how.average(flat, self.size)
            return
        where, offset = self.tensors.find(flat) if flat.nbytes > IN_PLACE_FROM else (ELSEWHERE, 0)
        if where == ELSEWHERE:
            self._write(flat[: PIECE // flat.itemsize])
        packed = call.pack(self.rank, self.size, where, offset)
        asked = arena.exchange(packed)
        check_agreement(asked, self.names)
        how = find_operation(call.op, flat.dtype)
        if flat.nbytes <= self._small and len(self._plans) < MOST_PLANS:
            turns = [[slot[: len(flat)] for slot in turn[: self.size]] for turn in arena.slots(flat.dtype)]
            self._plans[like] = packed, turns, how
        places = [place_of(other) for other in asked]
        elsewhere = sum(where == ELSEWHERE for where, _ in places)
        if not elsewhere:
            self._in_place(flat, how, places)
        else:
            written = 1 if elsewhere == self.size else 0
            all_combine = self.size == 2 or flat.nbytes <= ALL_READ_ALL
            (self._all_combine if all_combine else self._in_shares)(flat, how, written)
        how.average(flat, self.size)

    def _write(self, part: Tensor) -> None:
        self.arena.slots(part.dtype)[self.arena.turn][self.rank][: len(part)].copy_(part)

    def _slots_of(self, flat: Tensor, written: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Each piece with all slots, once all ranks have written it; so many are ``written`` from the start."""
        slots = self.arena.slots(flat.dtype)
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= written:
                self._write(part)
                self._barrier.wait()
            yield part, slots[self._barrier.beat & 1]

    def _all_combine(self, flat: Tensor, how: Operation, written: int) -> None:
        """One barrier a piece; all combine in the order of ranks, so that all get the same."""
        for part, slots in self._slots_of(flat, written):
            _combine([slot[: len(part)] for slot in slots[: self.size]], how, part)

    def _in_shares(self, flat: Tensor, how: Operation, written: int) -> None:
        """Each rank combines its share of every piece; the piece before is taken out at the barrier of the next."""
        before, done = flat[:0], flat[:0]
        for part, slots in self._slots_of(flat, written):
            before.copy_(done)
            mine = slice(*share(len(part), self.rank, self.size))
            _combine([slot[mine] for slot in slots[: self.size]], how, slots[self.size][mine])
            before, done = part, slots[self.size][: len(part)]
        self._barrier.wait()
        before.copy_(done)

    def _in_place(self, flat: Tensor, how: Operation, places: Sequence[tuple[int, int]]) -> None:
        """Each rank combines its share of all ranks' tensors and writes the result to all of them."""
        mine = slice(*share(len(flat), self.rank, self.size))
        whole = [self.tensors.view(where, rank, flat, offset) for rank, (where, offset) in enumerate(places)]
        pieces = [cut(tensor[mine], IN_CACHE) for tensor in (whole.pop(self.rank), *whole)]
        for own, *others in zip(*pieces, strict=True):
            for part in others:
                how.combine(own, part)
            for part in others:
                part.copy_(own)
        self._barrier.wait()

    def _pieces(self, flat: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Where each piece lies, and the parts of the slots for it: written, then a barrier, then read."""
        slots, step = self.arena.slots(flat.dtype), PIECE // flat.itemsize
        for start in range(0, len(flat), step):
            stop = min(start + step, len(flat))
            yield slice(start, stop), [slot[: stop - start] for slot in slots[self.arena.turn][: self.size]]

    def broadcast(self, flat: Tensor, root: int) -> None:
        for at, slots in self._pieces(flat):
            if self.rank == root:
                slots[root].copy_(flat[at])
            self._barrier.wait()
            if self.rank != root:
                flat[at].copy_(slots[root])

    def reduce(self, flat: Tensor, root: int, how: Operation) -> None:
        for at, slots in self._pieces(flat):
            slots[self.rank].copy_(flat[at])
            self._barrier.wait()
            if self.rank == root:
                _combine(slots, how, flat[at])
        if self.rank == root:
            how.average(flat, self.size)

    def gather(self, outputs: Tensors, flat: Tensor) -> None:
        for at, slots in self._pieces(flat):
            slots[self.rank].copy_(flat[at])
            self._barrier.wait()
            for slot, output in zip(slots, outputs, strict=False):
                output[at].copy_(slot)

    def scatter(self, output: Tensor, inputs: Tensors, root: int) -> None:  # noqa: ARG002
        for at, slots in self._pieces(output):
            for slot, given in zip(slots, inputs, strict=False):
                slot.copy_(given[at])
            self._barrier.wait()
            output[at].copy_(slots[self.rank])

    def reduce_scatter(self, output: Tensor, inputs: Tensors, how: Operation) -> None:
        for at, parts in self._crossed(inputs, len(output)):
            _combine(parts, how, output[at])
        how.average(output, self.size)

    def all_to_all(self, outputs: Tensors, inputs: Tensors, longest: int) -> None:
        for at, parts in self._crossed(inputs, longest):
            for output, part in zip(outputs, parts, strict=True):
                target = output[at]
                target.copy_(part[: len(target)])

    def _crossed(self, inputs: Tensors, length: int) -> Iterator[tuple[slice, list[Tensor]]]:
        """Every slot holds a part for each rank; each rank gets its own parts of all slots."""
        slots, step = self.arena.slots(inputs[0].dtype), PIECE // inputs[0].itemsize // self.size
        for start in range(0, length, step):
            turn = slots[self.arena.turn][: self.size]
            for rank, given in enumerate(inputs):
                part = given[start : start + step]
                turn[self.rank][rank * step : rank * step + len(part)].copy_(part)
            self._barrier.wait()
            mine = slice(self.rank * step, self.rank * step + min(step, length - start))
            yield slice(start, start + step), [slot[mine] for slot in turn]

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        self._outboxes[to].send(tensor, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        self._inboxes[source].receive(tensor, tag)

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        begun, pause = monotonic(), _SOON
        while True:
            gone = self.arena.peers.gone()  # what they sent before that is in the boxes
            for source, box in enumerate(self._inboxes):
                if box.offer(tensor, tag):
                    return source
            self.arena.peers.check_senders(gone, begun)
            sleep(pause)
            pause = min(_LATER, 1.5 * pause)

    def explain(self, error: PeerLost) -> PeerLost:
        return error

    def close(self) -> None:
        self.arena.close()


def _combine(parts: Tensors, how: Operation, out: Tensor) -> None:
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    how.into(parts[0], parts[1], out=out)
    for part in parts[2:]:
        how.into(out, part, out=out)


def cut(flat: Tensor, size: int) -> list[Tensor]:
    step = size // flat.itemsize
    return [flat[start : start + step] for start in range(0, len(flat), step)]


def share(length: int, rank: int, size: int) -> tuple[int, int]:
    """Which elements a rank combines: parts of equal size up to a cache line's worth."""
    step = -(-length // size // 64) * 64 or 64
    start = min(length, rank * step)
    return start, min(length, start + step)

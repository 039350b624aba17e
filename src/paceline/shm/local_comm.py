"""Collectives among the ranks of one host, through the memory that they share.

Every one of them is a stream of pieces: all ranks write a piece of what they have into their slots, wait for each
other once, and read what they need from the others' slots. Sums of tensors in shared memory need no slot at all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from time import monotonic, sleep

import torch
from msgspec.json import Decoder, encode
from torch import Tensor

from paceline.shm.arena import EXCHANGED, PIECE, ArenaLayout, Mailbox, SharedTensors, box_bytes
from paceline.shm.barrier import Barrier, PeerLost
from paceline.shm.call import ELSEWHERE, Call, Tensors, check_agreement, place_of, with_place
from paceline.shm.operations import OPERATIONS, Operation, find_operation
from paceline.shm.segment import Handle, SharedMemoryUnavailable, map_together

ALL_READ_ALL = 2**15
"""Bytes up to which every rank combines all slots by itself, at the price of one barrier instead of two."""
IN_CACHE = 2**19
"""Bytes that are combined at a time in place, so that copying the result finds it in the cache."""
IN_PLACE_FROM = 2**17
"""Bytes from which tensors in shared memory are combined in place; for smaller ones, slots need a barrier less."""
MOST_PLANS = 256
_OFFER = Decoder(Handle | str)
_SOON, _LATER = 2e-4, 5e-3
"""Seconds between looks for a message from any source, at first and after a while."""


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """An all-reduce that was done before: all that does not depend on where the tensor lies."""

    packed: bytes
    """The request."""
    how: Operation
    slots: Sequence[Sequence[Tensor]]
    """If it is small, the parts of all ranks' slots for it, by turn and rank."""


class LocalComm:
    """The ranks of a group that share a host.

    A call that the ranks do not agree on raises the same error on all and leaves the group usable; a rank that dies
    raises ``PeerLost`` on the others, for this call and for ever after.
    """

    def __init__(
        self,
        memory: mmap | None,
        rank: int,
        processes: Sequence[int],
        names: Sequence[int],
        timeout: float,
        label: str = "",
        warn: Callable[[str], object] = str,
    ) -> None:
        """``memory`` is all zeros, None for a rank alone; ``names`` is what errors call the ranks.

        In the memory are two slots a rank and two for results, used in turn: what is written before a beat is read
        after it.
        """
        self.rank, self.size, self.names = rank, len(processes), names
        self.team_sizes = [self.size]
        """How many ranks share memory, team by team."""
        self._label, self._warn, self._layout = label, warn, ArenaLayout(self.size)
        self._memory = mmap(-1, self._layout.end) if memory is None else memory
        self.barrier = Barrier(self._memory, rank, processes, names, timeout)
        calls = [self._layout.calls + place * EXCHANGED for place in range(2 * self.size)]
        self._calls = calls[::2], calls[1::2]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}
        self.tensors = SharedTensors(rank, self.size)
        self._small = IN_PLACE_FROM if self.size == 2 else ALL_READ_ALL
        self._plans: dict[tuple[torch.dtype, int, str], CachedPlan] = {}
        self._outboxes = [self._box(rank, other) for other in range(self.size)]
        self._inboxes = [self._box(other, rank) for other in range(self.size)]
        try:
            self.barrier.arrive()
        except BaseException:
            self.close()
            raise

    @property
    def _turn(self) -> int:
        """Which of the two slots the next beat makes readable."""
        return (self.barrier.beat + 1) & 1

    def _slots(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """By turn and rank; the last of each turn is for results."""
        if dtype not in self._typed:
            whole = torch.frombuffer(self._memory, dtype=torch.uint8)[self._layout.slots : self._layout.end]
            turns = whole.view(2, self.size + 1, PIECE)
            self._typed[dtype] = [[slot.view(dtype) for slot in turn] for turn in turns]
        return self._typed[dtype]

    def _exchange(self, packed: bytes) -> list[bytes]:
        """Wait for all ranks, and return what each gave, by rank; all give as many bytes."""
        memory, starts, size = self._memory, self._calls[self._turn], len(packed)
        memory[starts[self.rank] : starts[self.rank] + size] = packed
        self.barrier.arrive()
        return [memory[start : start + size] for start in starts]

    def _box(self, source: int, target: int) -> Mailbox:
        start = self._layout.boxes + (source * self.size + target) * box_bytes(self.size)
        return Mailbox(self._memory, start, self.barrier, target if source == self.rank else source)

    def _more_memory(self, size: int) -> mmap | None:
        """A further segment on all ranks, or None on all if one cannot have it; handles pass through the memory."""

        def exchange(_: str, value: Handle | str) -> list[Handle | str]:
            packed = encode(value if isinstance(value, Handle) else value[: EXCHANGED // 2])
            return [_OFFER.decode(given) for given in self._exchange(packed.ljust(EXCHANGED))]

        if self.size == 1:
            return mmap(-1, size)
        try:
            return map_together(self.rank == 0, self._label, size, exchange)
        except SharedMemoryUnavailable as error:
            if self.rank == 0:
                self._warn(f"{error}; sums go through slots instead")
            return None

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        return self.tensors.zeros(length, dtype, self._more_memory)

    def agree(self, call: Call) -> None:
        self.barrier.doing = call.kind
        check_agreement(self._exchange(call.pack(self.rank, self.size)), self.names)

    def all_reduce(self, call: Call) -> None:
        """The result is the same to the last bit on all ranks, which agree at the barrier of the first piece."""
        flat = call.outputs[0]
        if self.size > 1 and flat.dtype in OPERATIONS[call.op].types:
            self._carry_out(self._plans.get((flat.dtype, len(flat), call.op)) or self._plan(call), flat)
            return
        if self.size > 1:
            self.agree(call)
        find_operation(
            call.op, flat.dtype
        )  # which a rank alone need not do: a tensor is its own sum and mean

    def repeat(self, tensor: Tensor, op: str) -> bool:
        """All-reduce a tensor, and return whether that was done: only if there was one like it, and no copy is needed.

        This is what most calls are, and after a step of training nothing of Python is in the caches: few instructions.
        """
        plan = self._plans.get((tensor.dtype, tensor.numel(), op))
        if plan is None or tensor.requires_grad or not tensor.is_cpu:
            return False
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            return False
        self._carry_out(plan, tensor if tensor.dim() == 1 else tensor.view(-1))
        return True

    def _plan(self, call: Call) -> CachedPlan:
        flat, slots = call.outputs[0], list[list[Tensor]]()
        if flat.nbytes <= self._small:
            slots = [[slot[: len(flat)] for slot in turn[: self.size]] for turn in self._slots(flat.dtype)]
        plan = CachedPlan(call.pack(self.rank, self.size), OPERATIONS[call.op], slots)
        if len(self._plans) < MOST_PLANS:
            self._plans[flat.dtype, len(flat), call.op] = plan
        return plan

    def _carry_out(self, plan: CachedPlan, flat: Tensor) -> None:
        self.barrier.doing, how = "all_reduce", plan.how
        if plan.slots:
            slots = plan.slots[self._turn]
            slots[self.rank].copy_(flat)
            self._agree_on(plan, plan.packed)
            _combine(slots, how, flat)
        else:
            self._carry_out_long(plan, flat)
        how.average(flat, self.size)

    def _carry_out_long(self, plan: CachedPlan, flat: Tensor) -> None:
        where, offset = self.tensors.find(flat) if flat.nbytes > IN_PLACE_FROM else (ELSEWHERE, 0)
        packed = plan.packed
        if where == ELSEWHERE:
            self.barrier.rouse()
            self._write(flat[: PIECE // flat.itemsize])
        else:
            packed = with_place(packed, where, offset)
        asked = self._agree_on(plan, packed)
        places = [place_of(other) for other in asked]
        elsewhere = sum(where == ELSEWHERE for where, _ in places)
        if not elsewhere:
            self._in_place(flat, plan.how, places)
        else:
            written = 1 if elsewhere == self.size else 0
            all_combine = self.size == 2 or flat.nbytes <= ALL_READ_ALL
            (self._all_combine if all_combine else self._in_shares)(flat, plan.how, written)

    def _agree_on(self, plan: CachedPlan, packed: bytes) -> list[bytes]:
        asked = self._exchange(packed)
        if asked.count(plan.packed) < self.size:  # a request that is planned fits together on this rank
            check_agreement(asked, self.names)
        return asked

    def _write(self, part: Tensor) -> None:
        self._slots(part.dtype)[self._turn][self.rank][: len(part)].copy_(part)

    def _slots_of(self, flat: Tensor, written: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Each piece with all slots, once all ranks have written it; the first ``written`` pieces already are."""
        slots = self._slots(flat.dtype)
        for number, part in enumerate(cut(flat, PIECE)):
            if number >= written:
                self._write(part)
                self.barrier.arrive()
            yield part, slots[self.barrier.beat & 1]

    def _all_combine(self, flat: Tensor, how: Operation, written: int) -> None:
        """One barrier a piece; all combine in the order of ranks, so that all get the same."""
        for part, slots in self._slots_of(flat, written):
            parts = [slot[: len(part)] for slot in slots[: self.size]]
            if self.size == 2:
                parts[self.rank] = part  # the same as in the slot, which then need not be in the cache
            _combine(parts, how, part)

    def _in_shares(self, flat: Tensor, how: Operation, written: int) -> None:
        """Each rank combines its share of every piece; the piece before is taken out at the barrier of the next."""
        before, done = flat[:0], flat[:0]
        for part, slots in self._slots_of(flat, written):
            before.copy_(done)
            mine = slice(*share(len(part), self.rank, self.size))
            _combine([slot[mine] for slot in slots[: self.size]], how, slots[self.size][mine])
            before, done = part, slots[self.size][: len(part)]
        self.barrier.arrive()
        before.copy_(done)

    def _in_place(self, flat: Tensor, how: Operation, places: Sequence[tuple[int, int]]) -> None:
        """Each rank combines its share of all ranks' tensors and writes the result to all of them."""
        mine = slice(*share(len(flat), self.rank, self.size))
        whole = [self.tensors.view(where, rank, flat, offset) for rank, (where, offset) in enumerate(places)]
        pieces = [cut(tensor[mine], IN_CACHE) for tensor in whole]
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
        self.barrier.arrive()

    def _pieces(self, flat: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Where each piece lies, and the parts of the slots for it: written, then a barrier, then read."""
        slots, step = self._slots(flat.dtype), PIECE // flat.itemsize
        for start in range(0, len(flat), step):
            stop = min(start + step, len(flat))
            yield slice(start, stop), [slot[: stop - start] for slot in slots[self._turn][: self.size]]

    def broadcast(self, flat: Tensor, root: int) -> None:
        for at, slots in self._pieces(flat):
            if self.rank == root:
                slots[root].copy_(flat[at])
            self.barrier.arrive()
            if self.rank != root:
                flat[at].copy_(slots[root])

    def reduce(self, flat: Tensor, root: int, how: Operation) -> None:
        for at, slots in self._pieces(flat):
            slots[self.rank].copy_(flat[at])
            self.barrier.arrive()
            if self.rank == root:
                _combine(slots, how, flat[at])
        if self.rank == root:
            how.average(flat, self.size)

    def gather(self, outputs: Tensors, flat: Tensor) -> None:
        for at, slots in self._pieces(flat):
            slots[self.rank].copy_(flat[at])
            self.barrier.arrive()
            for slot, output in zip(slots, outputs, strict=False):
                output[at].copy_(slot)

    def scatter(self, output: Tensor, inputs: Tensors, root: int) -> None:  # noqa: ARG002
        for at, slots in self._pieces(output):
            for slot, given in zip(slots, inputs, strict=False):
                slot.copy_(given[at])
            self.barrier.arrive()
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
        slots, step = self._slots(inputs[0].dtype), PIECE // inputs[0].itemsize // self.size
        for start in range(0, length, step):
            turn = slots[self._turn][: self.size]
            for rank, given in enumerate(inputs):
                part = given[start : start + step]
                turn[self.rank][rank * step : rank * step + len(part)].copy_(part)
            self.barrier.arrive()
            mine = slice(self.rank * step, self.rank * step + min(step, length - start))
            yield slice(start, start + step), [slot[mine] for slot in turn]

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        self._outboxes[to].send(tensor, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> None:
        self._inboxes[source].receive(tensor, tag)

    def receive_any(self, tensor: Tensor, tag: int) -> int:
        begun, pause = monotonic(), _SOON
        while True:
            gone = self.barrier.gone()  # what they sent before that is in the boxes
            for source, box in enumerate(self._inboxes):
                if box.offer(tensor, tag):
                    return source
            self.barrier.check_senders(gone, begun)
            sleep(pause)
            pause = min(_LATER, 1.5 * pause)

    def explain(self, error: PeerLost) -> PeerLost:
        return error

    def close(self) -> None:
        self.barrier.close()


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

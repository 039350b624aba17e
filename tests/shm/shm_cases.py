"""Every operation, type and size, on 1 to 4 ranks: ``shm_cases.py OUT`` writes which cases failed."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from crew import attempt, crew_of, free_port, world, write_facts
from torch import Tensor
from torch.distributed import ReduceOp

import paceline.shm
from paceline.shm.arena import PIECE
from paceline.shm.local_comm import ALL_READ_ALL, IN_CACHE, LocalComm

Case = tuple[str, Callable[[], None]]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
OPS = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def has(op: ReduceOp, dtype: torch.dtype) -> bool:
    return dtype not in FLOATS if op in BITS else op != ReduceOp.AVG or dtype in FLOATS


def data(rank: int, length: int, dtype: torch.dtype, salt: int, whole: bool) -> Tensor:
    """What a rank brings; every rank can make every other's. Whole numbers give the same in any order of adding."""
    made = torch.Generator().manual_seed(1000 * salt + rank)
    if whole and dtype in FLOATS:
        return torch.randint(-4, 5, (length,), generator=made).to(dtype)
    if dtype in FLOATS:
        return torch.randn(length, generator=made).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 120, (length,), generator=made).to(dtype)


def combined(parts: list[Tensor], op: ReduceOp) -> Tensor:
    """The slow and obvious way, in the order of ranks."""
    result = parts[0].clone()
    for part in parts[1:]:
        result = OPS[op](result, part)
    return result / len(parts) if op == ReduceOp.AVG else result


def same(one: Tensor, other: Tensor) -> None:
    """Equal to the last bit."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    wrong = one.contiguous().view(-1).view(torch.uint8) != other.contiguous().view(-1).view(torch.uint8)
    assert not wrong.any(), f"{int(wrong.sum())} bytes differ, first at {int(wrong.nonzero()[0])}"


def boundaries(size: int, itemsize: int) -> list[int]:
    """Lengths around those where something changes, in elements."""
    edges = [ALL_READ_ALL, IN_CACHE, PIECE, 2 * PIECE, size * IN_CACHE, PIECE // size // itemsize * itemsize]
    lengths = {edge // itemsize + step for edge in edges for step in (-1, 0, 1)}
    return sorted(lengths | {3 * PIECE // itemsize + 77})


class Rank:
    def __init__(self, rank: int, size: int, whole: bool = False) -> None:
        self.rank, self.size, self.whole = rank, size, whole
        self.gloo = dist.new_group(backend="gloo")

    def data(self, rank: int, length: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
        return data(rank, length, dtype, salt, self.whole)

    def all(self, length: int, dtype: torch.dtype, salt: int = 0) -> list[Tensor]:
        return [self.data(rank, length, dtype, salt) for rank in range(self.size)]

    def cases(self) -> Iterator[Case]:
        short = (0, 1, self.size - 1, self.size + 1, 257)
        for op, dtype in product(OPS, FLOATS + WHOLE):
            if has(op, dtype):
                for length in short:
                    yield f"all_reduce {op} {dtype} {length}", partial(self.all_reduce, op, dtype, length)
        for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8):
            for length in boundaries(self.size, dtype.itemsize)[:: 1 if dtype == torch.float32 else 4]:
                yield f"all_reduce {dtype} {length}", partial(self.all_reduce, ReduceOp.SUM, dtype, length)
        for dtype, length in product(FLOATS + WHOLE, (1, 257)):
            yield f"others {dtype} {length}", partial(self.others, dtype, length)
        for length in (*short, *boundaries(self.size, 4)[::2]):
            yield f"others float32 {length}", partial(self.others, torch.float32, length)
        for name in (
            "again",
            "signs",
            "not_a_number",
            "gloo_agrees",
            "strided",
            "uneven",
            "single_tensors",
            "objects",
        ):
            yield name, getattr(self, name)
        for length in boundaries(self.size, 4):
            yield f"in place {length}", partial(self.in_place, length)
        for op, dtype in product((ReduceOp.AVG, ReduceOp.MAX, ReduceOp.SUM), (torch.bfloat16, torch.float64)):
            yield f"in place {op} {dtype}", partial(self.in_place, PIECE // 2 + 9, dtype, op)
        yield "half in place", self.half_in_place
        if isinstance(dist.group.WORLD.comm, LocalComm):
            yield "one's own", self.one_s_own

    def all_reduce(self, op: ReduceOp, dtype: torch.dtype, length: int) -> None:
        """Twice: what was done once is done in fewer steps, whatever the shape."""
        parts = self.all(length, dtype)
        for shape in ((length,), (length, 1)):
            mine = parts[self.rank].clone().view(shape)
            dist.all_reduce(mine, op=op)
            same(mine.view(length), combined(parts, op))

    def others(self, dtype: torch.dtype, length: int) -> None:
        """Broadcast, reduce, gathers, scatters and exchanges of one length."""
        parts, rank, size = self.all(length, dtype), self.rank, self.size
        root = length % size
        mine = parts[rank].clone()
        dist.broadcast(mine, src=root)
        same(mine, parts[root])
        mine = parts[rank].clone()
        dist.reduce(mine, dst=root, op=ReduceOp.MAX)
        same(mine, combined(parts, ReduceOp.MAX) if rank == root else parts[rank])
        found = [torch.empty(length, dtype=dtype) for _ in range(size)]
        dist.all_gather(found, parts[rank])
        for one, other in zip(found, parts, strict=True):
            same(one, other)
        found = [torch.empty(length, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(parts[rank], found, dst=root)
        for one, other in zip(found or [], parts, strict=False):
            same(one, other)
        everything = [self.all(length, dtype, salt) for salt in range(size)]
        mine = torch.empty(length, dtype=dtype)
        dist.reduce_scatter(mine, [everything[to][rank] for to in range(size)])
        same(mine, combined(everything[rank], ReduceOp.SUM))
        mine = torch.empty(length, dtype=dtype)
        dist.scatter(mine, everything[root] if rank == root else None, src=root)
        same(mine, everything[root][rank])
        found = [torch.empty(length, dtype=dtype) for _ in range(size)]
        dist.all_to_all(found, [everything[to][rank] for to in range(size)])
        for source, one in enumerate(found):
            same(one, everything[rank][source])

    def again(self) -> None:
        """The same call on tensors of other kinds and on other data, and refused where one rank asks for another."""
        wide = torch.zeros(40, 2)
        for turn in range(3):
            mine = self.data(self.rank, 40, torch.float32, turn)
            want = combined(self.all(40, torch.float32, turn), ReduceOp.SUM)
            wide[:, 0] = mine
            for one in (mine.clone(), mine.clone().requires_grad_(), wide[:, 0], mine.view(5, 8)):
                dist.all_reduce(one)
                same(one.detach().reshape(-1), want)
        if self.size > 1:
            for _ in range(2):
                one, other = torch.ones(40), torch.ones(41)
                dist.all_reduce(one)
                dist.all_reduce(other)
                with pytest.raises(
                    paceline.shm.InvalidCall, match=r"rank 0 called all_reduce\(40 x float32, sum"
                ):
                    dist.all_reduce(other if self.rank == self.size - 1 else one)
                assert one.eq(self.size).all()

    def signs(self) -> None:
        """Zeros of both signs and numbers that are none: the ranks must still agree to the last bit."""
        values = torch.tensor([0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf")])
        for op, length in product((ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX), (6, PIECE // 2)):
            mine = values.roll(self.rank).repeat(length // 6)
            dist.all_reduce(mine, op=op)
            first = mine.clone()
            dist.broadcast(first, src=0, group=self.gloo)
            same(mine, first)

    def not_a_number(self) -> None:
        """One rank's value that is no number makes the result none, whosever it is."""
        for op, dtype, length in product((ReduceOp.MIN, ReduceOp.MAX), FLOATS, (self.size + 1, PIECE)):
            mine = torch.full((length,), float(self.rank), dtype=dtype)
            mine[self.rank] = float("nan")
            dist.all_reduce(mine, op=op)
            assert mine[: self.size].isnan().all()
            assert mine[self.size :].eq(0 if op == ReduceOp.MIN else self.size - 1).all()

    def gloo_agrees(self) -> None:
        for op, dtype in product((ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX), FLOATS[2:]):
            one, other = self.data(self.rank, 1001, dtype), self.data(self.rank, 1001, dtype)
            dist.all_reduce(one, op=op)
            dist.all_reduce(other, op=op, group=self.gloo)
            torch.testing.assert_close(one, other)
        for op, dtype in product(BITS, (torch.int32, torch.uint8)):
            one, other = self.data(self.rank, 1001, dtype), self.data(self.rank, 1001, dtype)
            dist.all_reduce(one, op=op)
            dist.all_reduce(other, op=op, group=self.gloo)
            same(one, other)

    def strided(self) -> None:
        """Tensors with gaps, on either side."""
        for length in (30, PIECE // 4 // 3 * 3 + 30):
            parts = [part.view(3, -1).t() for part in self.all(length, torch.float32)]
            want = combined(parts, ReduceOp.SUM)
            mine = self.data(self.rank, length, torch.float32).view(3, -1).t()
            dist.all_reduce(mine)
            same(mine, want)
            found = [torch.empty(3, length // 3).t() for _ in range(self.size)]
            dist.all_gather(found, parts[self.rank])
            for one, other in zip(found, parts, strict=True):
                same(one, other)
            mine = torch.empty(3, length // 3).t()
            dist.scatter(mine, parts if self.rank == 0 else None, src=0)
            same(mine, parts[self.rank])
            mine = parts[self.rank].clone() if self.rank == 0 else torch.zeros(2, length // 3, 3)[0]
            dist.broadcast(mine, src=0)
            same(mine, parts[0])

    def uneven(self) -> None:
        """Parts of different sizes: what rank a gives to rank b has 7 a + 3 b elements, or many more."""
        for many in (1, PIECE // 16):
            length = lambda source, to: many * (7 * source + 3 * to)  # noqa: E731, B023
            give = [self.data(to, length(self.rank, to), torch.float32, self.rank) for to in range(self.size)]
            found = [torch.empty(length(source, self.rank)) for source in range(self.size)]
            want = [
                self.data(self.rank, length(source, self.rank), torch.float32, source)
                for source in range(self.size)
            ]
            dist.all_to_all(found, give)
            for one, other in zip(found, want, strict=True):
                same(one, other)
            whole = torch.empty(sum(map(len, want)))
            splits = [list(map(len, want)), list(map(len, give))]
            dist.all_to_all_single(whole, torch.cat(give), *splits)
            same(whole, torch.cat(want))

    def single_tensors(self) -> None:
        for length in (0, 5, PIECE // 4 + 5):
            parts = self.all(length, torch.float32)
            whole = torch.empty(self.size * length)
            dist.all_gather_into_tensor(whole, parts[self.rank])
            same(whole, torch.cat(parts))
            if hasattr(dist, "all_gather_single"):
                dist.all_gather_single(whole.zero_(), parts[self.rank])
                same(whole, torch.cat(parts))
            stacked = torch.empty(self.size, length)
            dist.all_gather_into_tensor(stacked, parts[self.rank])
            same(stacked, torch.stack(parts))
            mine = torch.empty(length)
            wide = self.all(length * self.size, torch.float32)
            dist.reduce_scatter_tensor(mine, wide[self.rank], op=ReduceOp.AVG)
            same(mine, combined(wide, ReduceOp.AVG).view(self.size, -1)[self.rank])
            found = torch.empty(length * self.size)
            dist.all_to_all_single(found, wide[self.rank])
            same(found, torch.cat([part.view(self.size, -1)[self.rank] for part in wide]))

    def objects(self) -> None:
        found = [None] * self.size
        dist.all_gather_object(found, {"rank": self.rank, "text": "x" * self.rank})
        assert found == [{"rank": rank, "text": "x" * rank} for rank in range(self.size)]
        told = ["hello", 3] if self.rank == 0 else [None, None]
        dist.broadcast_object_list(told, src=0)
        assert told == ["hello", 3]
        found = [None] * self.size if self.rank == 0 else None
        dist.gather_object(self.rank * "y", found, dst=0)
        assert found in (None, [rank * "y" for rank in range(self.size)])
        mine = [None]
        dist.scatter_object_list(mine, list(range(self.size)) if self.rank == 0 else None, src=0)
        assert mine == [self.rank]
        dist.barrier()

    def in_place(self, length: int, dtype: torch.dtype = torch.float32, op: ReduceOp = ReduceOp.SUM) -> None:
        """A part of shared memory, at another place on each rank; what lies beside it stays."""
        whole = paceline.shm.zeros(length + 16 * self.size, dtype=dtype)
        assert not whole.any()
        whole.fill_(7)
        start = 5 * self.rank + 1
        parts = self.all(length, dtype)
        whole[start : start + length].copy_(parts[self.rank])
        for _ in range(2):
            parts = [combined(parts, op)] * self.size
            dist.all_reduce(whole[start : start + length], op=op)
            same(whole[start : start + length], parts[0])
        assert whole[:start].eq(7).all()
        assert whole[start + length :].eq(7).all()

    def one_s_own(self) -> None:
        """A tensor in shared memory holds this rank's data only; slices and views of it are found, empty ones too."""
        whole = paceline.shm.zeros(PIECE)
        assert whole.untyped_storage().nbytes() == whole.nbytes, "saving it would save the others' data"
        assert not paceline.shm.zeros(0).numel()
        for part in (
            whole,
            whole[3:],
            whole[7 : PIECE // 2],
            whole.view(4, -1)[1:3],
            whole.view(torch.int32),
        ):
            where, offset = dist.group.WORLD.comm.tensors.find(part)
            assert where >= 0
            assert offset == part.data_ptr() - whole.data_ptr()

    def half_in_place(self) -> None:
        """One rank has its tensor in shared memory, the others have not; and all in the same allocation twice."""
        for length in (100, PIECE // 4, PIECE + 100):
            shared = paceline.shm.zeros(2 * length)
            parts = self.all(length, torch.float32)
            mine = shared[length:] if self.rank == 0 else torch.empty(length)
            mine.copy_(parts[self.rank])
            dist.all_reduce(mine)
            same(mine, combined(parts, ReduceOp.SUM))
            shared.copy_(torch.cat([parts[self.rank], parts[self.rank]]))
            works = [dist.all_reduce(half, async_op=True) for half in shared.view(2, -1)]
            for work in works:
                work.wait()
            same(shared, torch.cat([combined(parts, ReduceOp.SUM)] * 2))


def main() -> None:
    facts = {}
    for size in (1, 2, 3, 4):
        port = free_port()

        def work(rank: int, size: int = size, port: int = port) -> dict[str, str]:
            world(rank, size, port)
            failed = attempt(list(Rank(rank, size).cases())[:: 1 if size in (2, 3) else 2])
            dist.destroy_process_group()
            return failed

        begun = time.monotonic()
        facts[str(size)] = {"ranks": crew_of(work, size, 60), "seconds": time.monotonic() - begun}
    write_facts(facts)


if __name__ == "__main__":
    main()

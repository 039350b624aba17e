"""A soak of the shared-memory backend: mixed collectives from a seed, each checked against the slow way.

Ops, sizes, types, groups, waiting or not, shared memory or not are drawn alike on all ranks; a wrong result, an error
or a hang ends it with an exit code that is not 0.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

import paceline.shm
from _ports import free_ports

TYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
SHARED = 400_000
"""Elements of the tensor in shared memory."""
PENDING = 4
"""Calls that may be under way at a time."""
Check = Callable[[], bool]


@dataclass
class Soak:
    """One rank's side of it."""

    rank: int
    size: int
    dice: random.Random
    groups: Sequence[tuple[Sequence[int], dist.ProcessGroup]]
    shared: Tensor
    pending: list[tuple[dist.Work, Check, str]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def data(self, call: int, rank: int, length: int, dtype: torch.dtype) -> Tensor:
        """What a rank brings to a call: small whole numbers, so that every order of adding gives the same."""
        made = torch.Generator().manual_seed(call * 64 + rank)
        return torch.randint(0, 5, (length,), generator=made).to(dtype)

    def length(self) -> int:
        """Mostly small, sometimes several pieces."""
        return int(2 ** self.dice.uniform(0, 19 if self.dice.random() < 0.1 else 12)) - 1

    def step(self, call: int) -> None:
        """Draw a call and make it, if this rank is in its group; every rank draws the same."""
        dice = self.dice
        ranks, group = dice.choice(self.groups)
        name = dice.choice(
            ["all_reduce"] * 6
            + ["broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"]
            + ["barrier", "ring", "mistake"]
        )
        length, dtype, root = self.length(), dice.choice(TYPES), dice.choice(ranks)
        later, shared = dice.random() < 0.4, dice.random() < 0.6
        offset, settle = dice.randrange(1000), dice.random() < 0.3
        if self.rank in ranks:
            parts = [self.data(call, rank, length, dtype) for rank in ranks]
            mine = parts[ranks.index(self.rank)].clone()
            if shared and name == "all_reduce" and dtype == torch.float32 and length + offset < SHARED:
                self.settle()  # others may still be at work on it
                mine = self.shared[offset : offset + length].copy_(mine)
            scene = Scene(self.rank, ranks, group, parts, mine, root)
            work, check = getattr(scene, f"_{name}")(later)
            self.done[f"{name}{' later' if work is not None else ''}"] += 1
            self.keep(work, check, f"call {call}: {name} of {length} x {dtype} in {list(ranks)}")
        if settle or len(self.pending) > PENDING:
            self.settle()

    def keep(self, work: dist.Work | None, check: Check, words: str) -> None:
        """Check now, or when the work is done."""
        if work is not None:
            self.pending.append((work, check, words))
        elif not check():
            sys.exit(f"rank {self.rank}: wrong result, {words}")

    def settle(self) -> None:
        """Wait for all that is under way."""
        for work, check, words in self.pending:
            work.wait()
            if not check():
                sys.exit(f"rank {self.rank}: wrong result, {words}")
        self.pending.clear()


@dataclass
class Scene:
    """One call: what every rank brings, and how each collective is made and checked."""

    rank: int
    ranks: Sequence[int]
    group: dist.ProcessGroup
    parts: list[Tensor]
    mine: Tensor
    root: int

    @property
    def _total(self) -> Tensor:
        return reduce(torch.add, self.parts)

    @property
    def _here(self) -> int:
        return self.ranks.index(self.rank)

    def _empty(self) -> list[Tensor]:
        return [torch.empty_like(part) for part in self.parts]

    def _all_reduce(self, later: bool) -> tuple[dist.Work | None, Check]:
        want = self._total
        return dist.all_reduce(self.mine, group=self.group, async_op=later), lambda: torch.equal(
            self.mine, want
        )

    def _broadcast(self, later: bool) -> tuple[dist.Work | None, Check]:
        work = dist.broadcast(self.mine, self.root, group=self.group, async_op=later)
        return work, lambda: torch.equal(self.mine, self.parts[self.ranks.index(self.root)])

    def _reduce(self, later: bool) -> tuple[dist.Work | None, Check]:
        want = self._total if self.rank == self.root else self.mine.clone()
        work = dist.reduce(self.mine, self.root, group=self.group, async_op=later)
        return work, lambda: torch.equal(self.mine, want)

    def _all_gather(self, later: bool) -> tuple[dist.Work | None, Check]:
        found = self._empty()
        work = dist.all_gather(found, self.mine, group=self.group, async_op=later)
        return work, lambda: all(map(torch.equal, found, self.parts))

    def _reduce_scatter(self, later: bool) -> tuple[dist.Work | None, Check]:
        result = torch.empty_like(self.mine)
        give = [self.mine + place for place in range(len(self.ranks))]
        want = reduce(torch.add, [part + self._here for part in self.parts])
        work = dist.reduce_scatter(result, give, group=self.group, async_op=later)
        return work, lambda: torch.equal(result, want)

    def _gather(self, later: bool) -> tuple[dist.Work | None, Check]:
        found = self._empty() if self.rank == self.root else None
        work = dist.gather(self.mine, found, self.root, group=self.group, async_op=later)
        return work, lambda: found is None or all(map(torch.equal, found, self.parts))

    def _scatter(self, later: bool) -> tuple[dist.Work | None, Check]:
        result = torch.empty_like(self.mine)
        give = self.parts if self.rank == self.root else None
        work = dist.scatter(result, give, self.root, group=self.group, async_op=later)
        return work, lambda: torch.equal(result, self.parts[self._here])

    def _all_to_all(self, later: bool) -> tuple[dist.Work | None, Check]:
        found = self._empty()
        give = [self.mine + place for place in range(len(self.ranks))]
        work = dist.all_to_all(found, give, group=self.group, async_op=later)
        return work, lambda: all(
            torch.equal(one, part + self._here) for one, part in zip(found, self.parts, strict=True)
        )

    def _barrier(self, later: bool) -> tuple[dist.Work | None, Check]:
        return dist.barrier(group=self.group, async_op=later), lambda: True

    def _ring(self, _: bool) -> tuple[dist.Work | None, Check]:
        """A message to the right, and one from the left."""
        size, got = len(self.ranks), torch.empty_like(self.mine)
        left = (self._here - 1) % size
        sending = dist.isend(
            self.mine, self.ranks[(self._here + 1) % size], group=self.group, tag=len(got) % 3
        )
        dist.recv(got, self.ranks[left], group=self.group, tag=len(got) % 3)
        assert sending is not None
        sending.wait()
        return None, lambda: torch.equal(got, self.parts[left])

    def _mistake(self, _: bool) -> tuple[dist.Work | None, Check]:
        """Sizes that differ: refused on every rank, and no harm done."""
        try:
            dist.all_reduce(torch.zeros(len(self.mine) + self._here), group=self.group)
        except paceline.shm.InvalidCall:
            return None, lambda: True
        return None, lambda: False


def worker(rank: int, options: argparse.Namespace) -> Counter[str]:
    torch.set_num_threads(1)
    dist.init_process_group(
        "shm",
        init_method=f"tcp://127.0.0.1:{options.port}",
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(seconds=60),
    )
    everybody = list(range(options.ranks))
    members = [everybody, everybody, everybody[:2], everybody[::-1][:2][::-1]]
    groups = [(ranks, dist.new_group(ranks, backend="shm")) for ranks in members]
    soak = Soak(rank, options.ranks, random.Random(options.seed), groups, paceline.shm.zeros(0))
    soak.shared = paceline.shm.zeros(SHARED, group=groups[0][1])
    for call in range(options.calls):
        soak.step(call)
    soak.settle()
    dist.barrier()
    dist.destroy_process_group()
    return soak.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        worker(options.rank, options)
        return
    options.port = free_ports(1)[0]
    command = [sys.executable, __file__, "--port", str(options.port), "--seed", str(options.seed)]
    command += ["--calls", str(options.calls), "--ranks", str(options.ranks)]
    others = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(1, options.ranks)]
    begun = time.perf_counter()
    done = worker(0, options)
    seconds = time.perf_counter() - begun
    codes = [other.wait() for other in others]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{options.calls:,} calls drawn with seed {options.seed} on {options.ranks} ranks, {seconds:.1f} s")
    print(f"rank 0 made {sum(done.values()):,}, all right, with {used / 1e3:,.0f} MB at most:")
    print(", ".join(f"{count:,} {name}" for name, count in done.most_common()))
    sys.stdout.flush()
    os._exit(max(codes, key=abs, default=0) and 1)


if __name__ == "__main__":
    main()

"""Futures, messages, groups and mistakes, on 2 to 4 ranks: ``shm_uses.py OUT`` writes which cases failed, and texts."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which DDP would import in every rank
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from crew import attempt, crew_of, free_port, in_dev_shm, world, write_facts
from shm_ddp import ddp_facts
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import paceline.shm
from paceline.shm.arena import PIECE

Case = tuple[str, Callable[[], None]]
ROUNDS = 3
"""How often a process leaves and joins again."""
BIG = 3 * PIECE // 4 + 5
"""Elements that pass through every slot in several pieces."""


class Uses:
    """What a script may do with a group of ``size`` ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.right, self.left = (rank + 1) % size, (rank - 1) % size
        self.total = float(sum(range(1, size + 1)))

    def cases(self) -> Iterator[Case]:
        names = (
            "futures", "callbacks", "order", "between", "messages", "crossing", "tags", "conversations", "anybody",
            "names", "subgroups", "turns", "power_sgd", "forked_workers", "wanting_gradients", "torchs_own", "waiting",
            "many_waiting", "woken", "again",
        )  # fmt: skip
        for name in names:
            yield name, getattr(self, name)

    def mine(self, length: int = 10) -> torch.Tensor:
        return torch.full((length,), self.rank + 1.0)

    def futures(self) -> None:
        """Several at once; each is done when it says so, and holds the tensors."""
        tensors = [self.mine(length) for length in (1, 1000, BIG)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        found = [work.get_future().wait() for work in works]
        for work, tensor, result in zip(works, tensors, found, strict=True):
            assert tensor.eq(self.total).all()
            assert result[0].data_ptr() == tensor.data_ptr()
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
        doubled = (
            dist.all_reduce(self.mine(), async_op=True).get_future().then(lambda done: 2 * done.value()[0])
        )
        assert doubled.wait().eq(2 * self.total).all()

    def callbacks(self) -> None:
        """A callback may use the group itself, and wait for what it asked for."""
        noted: list[float] = []

        def again(future: Any) -> torch.Tensor:
            first = future.value()[0]
            dist.all_reduce(first, op=ReduceOp.MAX)
            return dist.all_reduce(first, async_op=True).get_future().wait()[0]

        work = dist.all_reduce(self.mine(), async_op=True)
        future = work.get_future().then(again)
        future.add_done_callback(lambda done: noted.append(done.value()[0].item()))
        assert future.wait().eq(self.total * self.size).all()
        deadline = time.monotonic() + 5
        while not noted and time.monotonic() < deadline:
            time.sleep(0.001)
        assert noted == [self.total * self.size]
        dist.barrier()

    def order(self) -> None:
        """A call that waits comes after those that do not."""
        tensor = self.mine(BIG)
        for _ in range(3):
            dist.all_reduce(tensor, op=ReduceOp.AVG, async_op=True)
        tensor_sum = self.mine()
        dist.all_reduce(tensor_sum)
        assert tensor_sum.eq(self.total).all()
        assert torch.allclose(tensor, torch.tensor(self.total / self.size)), (
            "the sync call overtook the others"
        )

    def between(self) -> None:
        """A tensor in shared memory can be made while collectives are under way."""
        for _ in range(5):
            tensors = [self.mine(BIG) for _ in range(2)]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            shared = paceline.shm.zeros(1000)
            assert all(work.is_completed() for work in works)
            dist.all_reduce(shared.add_(self.rank + 1.0))
            for tensor in (*tensors, shared):
                assert tensor.eq(self.total).all()

    def messages(self) -> None:
        for length in (0, 1, 1000, BIG):
            for dtype in (torch.float32, torch.bool, torch.bfloat16):
                give = (torch.arange(length) % 2 + (0 if dtype == torch.bool else self.rank)).to(dtype)
                want = (torch.arange(length) % 2 + (0 if dtype == torch.bool else self.left)).to(dtype)
                got = torch.empty(length, dtype=dtype)
                sending = dist.isend(give, self.right)
                dist.recv(got, self.left)
                sending.wait()
                assert torch.equal(got, want)
        if self.rank == 0:
            dist.send(torch.arange(6.0).view(2, 3).t(), 1)
        if self.rank == 1:
            got = torch.zeros(2, 3).t()
            dist.recv(got, 0)
            assert torch.equal(got, torch.arange(6.0).view(2, 3).t())

    def crossing(self) -> None:
        """Everybody sends big messages to everybody before it receives any."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        sending = [dist.isend(self.mine(BIG), other) for other in others]
        for other in others:
            got = torch.empty(BIG)
            dist.recv(got, other)
            assert got.eq(other + 1).all()
        for work in sending:
            work.wait()

    def tags(self) -> None:
        """Messages are told apart by tag, whatever their order; those of one tag keep theirs."""
        for length in (3, BIG):
            sending = [
                dist.isend(torch.full((length,), float(tag)), self.right, tag=tag) for tag in (5, 6, 7, 6)
            ]
            got = {tag: torch.empty(length) for tag in (7, 6, 5)}
            for tag, tensor in got.items():
                dist.recv(tensor, self.left, tag=tag)
                assert tensor.eq(tag).all()
            dist.recv(got[6].zero_(), self.left, tag=6)
            assert got[6].eq(6).all()
            for work in sending:
                work.wait()

    def conversations(self) -> None:
        """One that waits for a message with a tag does not hold up another with another tag."""
        late = torch.empty(4)
        waiting = dist.irecv(late, self.left, tag=1)
        soon = torch.empty(4)
        sending = [dist.isend(self.mine(4), self.right, tag=2)]
        dist.recv(soon, self.left, tag=2)
        assert soon.eq(self.left + 1).all()
        assert not waiting.is_completed()
        dist.barrier()
        sending.append(dist.isend(self.mine(4), self.right, tag=1))
        waiting.wait()
        assert late.eq(self.left + 1).all()
        for work in sending:
            work.wait()

    def anybody(self) -> None:
        """Messages from any source, of the tag that is asked for."""
        for length in (2, BIG):
            if self.rank == 0:
                got, found = torch.empty(length), []
                for _ in range(self.size - 1):
                    found.append(dist.recv(got, tag=3))
                    assert got.eq(found[-1] + 1).all()
                assert sorted(found) == list(range(1, self.size))
                for source in range(1, self.size):
                    dist.recv(got, source, tag=9)
                    assert got.eq(-source).all()
            else:
                first = dist.isend(torch.full((length,), -float(self.rank)), 0, tag=9)
                dist.send(self.mine(length), 0, tag=3)
                first.wait()
            dist.barrier()

    def names(self) -> None:
        """What plain scripts ask a group."""
        assert dist.get_backend() == "shm"
        assert dist.get_world_size() == self.size
        assert dist.get_rank() == self.rank
        group = dist.group.WORLD
        assert group.rank() == self.rank
        assert group.size() == self.size
        assert group.name() == "shm"
        assert isinstance(group.group_name, str)
        assert dist.get_process_group_ranks(group) == list(range(self.size))
        assert dist.is_initialized()
        assert "shm" in str(dist.get_backend_config())
        if self.size > 1:
            assert not in_dev_shm(), "a segment still has a name"

    def subgroups(self) -> None:
        last = list(range(1, self.size))
        group = dist.new_group(last, backend="shm")
        if self.rank > 0:
            tensor = self.mine()
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(self.total - 1).all()
            dist.broadcast(tensor.fill_(self.rank), src=last[-1], group=group)
            assert tensor.eq(last[-1]).all()
            shared = paceline.shm.zeros(BIG, group=group)
            dist.all_reduce(shared.add_(self.rank + 1.0), group=group)
            assert shared.eq(self.total - 1).all()
            dist.destroy_process_group(group)
        default = dist.new_group([0, 1])
        assert self.rank > 1 or dist.get_backend(default) == "shm"
        dist.barrier()

    def turns(self) -> None:
        """Two groups used in turns, with a Gloo group between."""
        one, other = dist.new_group(backend="shm"), dist.new_group(backend="cpu:shm")
        gloo = dist.new_group(backend="gloo")
        for length in (3, BIG):
            tensor = torch.ones(length)
            works = [
                dist.all_reduce(torch.ones(length), group=group, async_op=True) for group in (one, other)
            ]
            for group in (one, gloo, other, None):
                dist.all_reduce(tensor, group=group)
            for work in works:
                assert work.get_future().wait()[0].eq(self.size).all()
            assert tensor.eq(self.size**4).all()
        for group in (one, other, gloo):
            dist.destroy_process_group(group)

    def power_sgd(self) -> None:
        """A hook of torch's own whose callbacks reduce, and wait."""
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(40, 30))
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for step in range(5):
            model(
                torch.randn(4, 40, generator=torch.Generator().manual_seed(self.rank + 10 * step))
            ).sum().backward()
        grads = [torch.empty(30, 40) for _ in range(self.size)]
        dist.all_gather(grads, model.module.weight.grad)
        assert all(torch.equal(grads[0], grad) for grad in grads)

    def forked_workers(self) -> None:
        """Loaders that fork copy the group's memory and threads; that must not matter."""
        numbers = list(range(8))
        dist.all_reduce(self.mine(), async_op=True).wait()
        for _ in range(2):
            for batch in DataLoader(numbers, batch_size=2, num_workers=1, multiprocessing_context="fork"):
                tensor = batch.float()
                dist.all_reduce(tensor)
                assert torch.equal(tensor, batch.float() * self.size)
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        dist.barrier()

    def wanting_gradients(self) -> None:
        """Parameters, which want gradients, as they are, in every way that a script may move them."""
        values = torch.nn.Parameter(self.mine(12))
        dist.broadcast(values, 0)
        for wait in (False, True):
            work = dist.all_reduce(values, op=ReduceOp.AVG, async_op=wait)
            assert work is None or work.wait()
        dist.reduce(values, 0, op=ReduceOp.MAX)
        found = [torch.nn.Parameter(self.mine(12)) for _ in range(self.size)]
        dist.all_gather(found, values)
        whole = torch.nn.Parameter(torch.zeros(12 * self.size))
        dist.all_gather_into_tensor(whole, values)
        dist.reduce_scatter_tensor(values, whole)
        dist.all_to_all(found, list(whole.view(self.size, -1)))
        dist.all_to_all_single(whole, whole.clone())
        dist.scatter(values, list(whole.view(self.size, -1)) if self.rank == 0 else None, 0)
        dist.gather(values, found if self.rank == 0 else None, 0)
        sending = dist.isend(values, self.right)
        dist.recv(found[0], self.left)
        sending.wait()
        values.sum().backward()
        assert values.requires_grad
        assert values.grad is not None

    def torchs_own(self) -> None:
        """What torch builds on a group: functional collectives, coalescing, lists of messages, sharded models."""
        group = dist.group.WORLD
        assert functional.wait_tensor(functional.all_reduce(self.mine(), "sum", group)).eq(self.total).all()
        parts = functional.wait_tensor(functional.all_gather_tensor(self.mine(1), 0, group))
        assert parts.tolist() == list(range(1, self.size + 1))
        one, other = self.mine(3), self.mine(5)
        with dist._coalescing_manager(async_ops=True) as works:
            dist.all_reduce(one)
            dist.all_reduce(other)
        works.wait()
        assert torch.cat([one, other]).eq(self.total).all()
        got = torch.empty(4)
        messages = [dist.P2POp(dist.isend, self.mine(4), self.right), dist.P2POp(dist.irecv, got, self.left)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        assert got.eq(self.left + 1).all()
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 3 * self.size)
        want = model.weight.detach().clone()
        fully_shard(model, mesh=init_device_mesh("cpu", (self.size,)))
        model(torch.ones(2, 8) * (self.rank + 1)).sum().backward()
        assert torch.equal(model.weight.full_tensor(), want)
        assert model.weight.grad.full_tensor().eq(2 * self.total / self.size).all()

    def waiting(self) -> None:
        """Who waits leaves the core to others."""
        for wait in (dist.barrier, self._receive, self._receive_any):
            dist.barrier()
            if self.rank == 0:
                time.sleep(0.5)
                if wait is not dist.barrier:
                    for other in range(1, self.size):
                        dist.send(self.mine(), other)
            before = time.process_time()
            begun = time.monotonic()
            if self.rank or wait is dist.barrier:
                wait()
            if self.rank:
                assert time.monotonic() - begun > 0.3
                assert time.process_time() - before < 0.03, f"{time.process_time() - before} s of CPU"

    def _receive(self) -> None:
        dist.recv(torch.empty(10), 0)

    def _receive_any(self) -> None:
        dist.recv(torch.empty(10))

    def many_waiting(self) -> None:
        """Threads that wait for a message from each rank, one from anybody, and a collective, all at once."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        works = [dist.irecv(torch.empty(4), other, tag=tag) for other in others for tag in range(8)]
        works.append(dist.irecv(torch.empty(4), tag=99))
        late = dist.all_reduce(self.mine(), async_op=True) if self.rank else None
        time.sleep(0.3)
        for other in others:
            for tag in range(8):
                dist.send(self.mine(4), other, tag=tag)
        dist.send(self.mine(4), self.right, tag=99)
        late = late or dist.all_reduce(self.mine(), async_op=True)
        for work in (*works, late):
            work.wait(timedelta(seconds=5))

    def woken(self) -> None:
        """Ranks that sleep are woken by the last to arrive; without that, each call would take a nap of 0.1 s."""
        begun, calls = time.monotonic(), 40
        for call in range(calls):
            if call % self.size == self.rank:
                time.sleep(0.004)
            dist.all_reduce(self.mine(BIG if call % 5 == 0 else 10))
        assert time.monotonic() - begun < 0.06 * calls

    def again(self) -> None:
        """Leaving and joining again, many times over one store, leaves nothing behind."""
        works = (
            [dist.irecv(torch.empty(4), 1), dist.isend(self.mine(BIG), 1)]
            if self.rank == 0 and self.size == 2
            else []
        )
        begun = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - begun < 8, "leaving waited for messages that nobody takes"
        for work in works:
            try:
                work.wait()
            except paceline.shm.PeerLost:
                continue
            raise AssertionError("a message that nobody sent or took is no success")
        counts = []
        store = dist.TCPStore("127.0.0.1", ports[self.size], self.size, self.rank == 0)
        for _ in range(ROUNDS):
            dist.init_process_group("shm", store=store, rank=self.rank, world_size=self.size)
            self._local_groups()
            paceline.shm.zeros(1000)
            dist.all_reduce(tensor := self.mine(BIG))
            assert tensor.eq(self.total).all()
            dist.all_reduce(self.mine(), async_op=True).wait()
            dist.destroy_process_group()
            gc.collect()
            maps = Path("/proc/self/maps").read_text().count("paceline-")
            counts.append((len(list(Path("/proc/self/fd").iterdir())), maps))
        assert counts[-1][0] <= counts[1][0], f"descriptors pile up: {counts}"
        assert counts[-1][1] <= counts[1][1], f"mappings pile up: {counts}"

    def _local_groups(self) -> None:
        """Groups that only their members know of, whose names are made of their ranks: the same name twice."""
        for _ in range(2):
            pair = [self.rank // 2 * 2, self.rank // 2 * 2 + 1]
            group = dist.new_group(pair, use_local_synchronization=True)
            dist.all_reduce(tensor := self.mine(), group=group)
            assert tensor.eq(sum(pair) + 2).all()
            dist.destroy_process_group(group)


ports: dict[int, int] = {}


def main() -> None:
    facts = {}
    for size in (2, 4):
        port = free_port()
        ports[size] = free_port()

        def work(rank: int, size: int = size, port: int = port) -> dict[str, str]:
            world(rank, size, port)
            return attempt(Uses(rank, size).cases())

        begun = time.monotonic()
        facts[str(size)] = {"ranks": crew_of(work, size, 60), "seconds": time.monotonic() - begun}
    write_facts({**facts, "ddp": ddp_facts()})


if __name__ == "__main__":
    main()

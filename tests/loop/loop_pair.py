"""One worker of a loop: ``loop_pair.py HOW OUT``, where HOW is ddp, plain, average or what distribute() takes.

``launched`` is distribute() with what the command line says.

``watch-ddp``, ``watch-plain`` and ``watch-bare`` are watched; the last is DDP, of which the bare module is given, and
whose rank 1 is slow.
"""

import faulthandler
import os
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import paceline

PERIOD, STEPS = 4, 12


def batches(rank: int) -> torch.Tensor:
    return torch.randn(STEPS, 2, 8, 6, generator=torch.Generator().manual_seed(7 + rank))


def main(how: str, out: str, steps: str = str(STEPS)) -> None:
    torch.manual_seed(3)
    watched = how.removeprefix("watch-") if how.startswith("watch-") else ""
    how = "ddp" if watched == "bare" else watched or how
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
    groups = [
        {"params": model[0].parameters(), "lr": 0.2},
        {"params": [*model[2].parameters(), model.unused]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    called, worker, rank = model, None, 0
    if how not in ("ddp", "average"):
        model.register_buffer("order", torch.arange(3))
        with torch.no_grad():
            for one in (*model.parameters(), *model.buffers()):
                one.mul_(5 if os.environ.get("RANK") == "1" else 1)
    if how in ("ddp", "average"):
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if how == "ddp":
            called = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    elif how == "launched":
        worker = paceline.distribute(model, optimizer)
        rank = worker.rank
    elif how != "plain":
        spec, _, codec = how.partition("+")
        worker = paceline.distribute(model, optimizer, strategy=spec, codec=codec or "identity")
        rank = worker.rank
    if worker:
        assert model.frozen.tolist() == [1, 1, 1], "rank 0's is that of all"
        assert model.order.tolist() == [0, 1, 2]
    if watched:
        paceline.watch(model if watched == "bare" else called, optimizer)
    for step, (first, second) in enumerate(islice(cycle(batches(rank)), int(steps)), start=1):
        if watched == "bare" and rank == 1:
            time.sleep(0.01)
        optimizer.zero_grad()
        no_sync = getattr(worker or called, "no_sync", torch.enable_grad)
        with no_sync():
            called(first).pow(2).mean().backward()
        called(second).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if how == "average" and step % PERIOD == 0:
            for one in model.parameters():
                dist.all_reduce(one.data)
                one.data /= 2
    if rank == 0:
        torch.save({name: one.clone() for name, one in model.state_dict().items()}, out)
    if dist.is_initialized() and worker is None:
        dist.barrier()  # the group is not destroyed: in a fork, Gloo has waited there for a thread that was gone
        left = Path(f"{out}.left")  # rank 0 has the store, and leaves last
        if rank:
            left.touch()
        for _ in range(1000):
            if not left.exists():
                time.sleep(0.01)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(45)  # before those who wait for it give up: where it hangs
    main(*sys.argv[1:])

"""A script that starts its own workers, as DistributedDataParallel's tutorial does: ``spawned_pair.py PORT``."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import paceline


def work(rank: int, port: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paceline.watch(model, optimizer)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1],), nprocs=2, start_method="fork")

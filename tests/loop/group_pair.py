"""Two workers that have a process group before they join, one the other's child: ``group_pair.py PORT HOW``."""

import os
import sys

import torch
import torch.distributed as dist

import paceline


def main(rank: int, port: str, how: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = paceline.distribute(model, optimizer, strategy="local-sgd:period=4")
    for _ in range(8):
        model(torch.randn(8, 4) + worker.rank).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if how == "close":
        worker.close()
    weights = [torch.zeros(2, 4) for _ in range(2)]
    dist.all_gather(weights, model.weight.data)  # the script's own group is as it was
    assert torch.equal(*weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert not any(name in os.environ for name in ("RANK", "MASTER_PORT"))
    child = os.fork()
    main(0 if child else 1, *sys.argv[1:])
    assert not child or os.waitpid(child, 0)[1] == 0

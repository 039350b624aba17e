"""One of two workers that save and load one distributed checkpoint: ``checkpoint_pair.py FROM TO FOLDER OUT``."""

import sys

import torch
from torch.distributed import checkpoint as dcp

import paceline


def main(first: str, last: str, folder: str, out: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = paceline.distribute(model, optimizer, strategy="diloco:period=3")
    names = f"model-{worker.rank}", f"worker-{worker.rank}"
    if int(first):
        parts = dict(zip(names, (model.state_dict(), worker), strict=True))
        dcp.load(parts, checkpoint_id=folder)
        model.load_state_dict(parts[names[0]])
    for _ in range(int(first), int(last)):
        model(torch.randn(3, 4) + worker.rank).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dcp.save(dict(zip(names, (model.state_dict(), worker), strict=True)), checkpoint_id=folder)
    torch.save(model.weight.detach(), f"{out}-{worker.rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A script that servers can keep: ``served_script.py OPTIMIZER OUT [STEPS OF RANK 0] [STEPS OF RANK 1]``."""

import os
import sys

import torch
from torch import nn

import paceline

STEPS = 12


class SignedSGD(torch.optim.Optimizer):
    """An optimizer of one's own, in the script itself."""

    def __init__(self, params, lr, keep):
        super().__init__(params, {"lr": lr, "keep": keep})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                    mean.mul_(group["keep"]).add_(one.grad)
                    one.sub_(group["lr"] * mean / (1 + mean.norm()))


def build(kind):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 5))
    model.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
    model.register_buffer("order", torch.arange(3))
    groups = [
        {"params": model[0].parameters(), "lr": 0.02},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, lr=0.1),
        "adam": lambda: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
        "own": lambda: SignedSGD(groups, lr=0.1, keep=0.5),
    }[kind]()
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


def batches(rank):
    return torch.randn(STEPS, 8, 6, generator=torch.Generator().manual_seed(7 + rank))


def main(kind, out, *steps):
    model, optimizer, scheduler = build(kind)
    if os.environ.get("RANK") == "1":
        with torch.no_grad():
            for one in (model[0].weight, model.frozen, model.order):
                one.add_(1)  # rank 0's model is what counts
    worker = paceline.distribute(model, optimizer)
    for batch in batches(worker.rank)[: int(steps[worker.rank]) if steps else None]:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        assert (model.frozen.tolist(), model.order.tolist()) == ([1, 1, 1], [0, 1, 2])
    assert not optimizer.state, "the servers have the state"
    if "0" in steps:  # a rank without a mini-batch has no part in the central model
        return
    with worker.central_model():
        parameters = [one.detach().clone() for one in model.parameters()]
    torch.save(parameters, f"{out}-{worker.rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""DDP over Gloo and over shared memory, same seed: how far the trained models are apart."""

from functools import partial
from typing import Any

import torch
import torch._dynamo  # which DDP would import in every rank
import torch.distributed as dist
from crew import crew_of, free_port, world
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


class Branching(nn.Module):
    """One of two branches is used, by turns and by rank; some steps leave parameters without a gradient everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 50)
        self.branches = nn.ModuleList([nn.Linear(50, 10), nn.Linear(50, 10), nn.Linear(50, 10)])
        self.turn = dist.get_rank()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.branches[self.turn % 2](self.stem(inputs).relu())


def deep() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(200, 200), nn.BatchNorm1d(200), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(nn.Linear(20, 200), *layers, nn.Linear(200, 10))


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "buckets": (deep, {"bucket_cap_mb": 0.2}),
    "one bucket": (deep, {"gradient_as_bucket_view": True}),
    "unused": (Branching, {"find_unused_parameters": True, "bucket_cap_mb": 0.001}),
    "accumulated": (deep, {"bucket_cap_mb": 0.5}),
    "static": (deep, {"static_graph": True}),
}


def train(name: str, rank: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    build, settings = CASES[name]
    model = DistributedDataParallel(build(), **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if name == "accumulated":
            with model.no_sync():
                model(torch.randn(8, 20, generator=made)).square().mean().backward()
        model(torch.randn(8, 20, generator=made)).square().mean().backward()
        optimizer.step()
    return model.module.state_dict()


def compare(rank: int, size: int, ports: dict[str, int]) -> dict[str, float]:
    """The largest difference of any number in the two models, by case; their buffers as well."""
    models: dict[str, list[dict[str, torch.Tensor]]] = {name: [] for name in CASES}
    for backend, port in ports.items():
        world(rank, size, port, backend)
        for name in CASES:
            models[name].append(train(name, rank))
        dist.barrier()
        dist.destroy_process_group()
    return {
        name: max(float((one[key] - other[key]).abs().max()) for key in one)
        for name, (one, other) in models.items()
    }


def ddp_facts() -> dict[str, Any]:
    facts = {}
    for size in (2, 3):
        ports = {backend: free_port() for backend in ("gloo", "shm")}
        facts[str(size)] = crew_of(partial(compare, size=size, ports=ports), size, 60)
    return facts

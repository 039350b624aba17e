"""A loop with bfloat16 autocast, a GradScaler, clipping, accumulation, batch norm and tied weights."""

import sys

import torch
from torch import Tensor, nn

import paceline


class Tied(nn.Module):
    """Encodes and decodes with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decode(torch.relu(self.norm(self.encode(inputs))))


torch.manual_seed(1)
model = Tied()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
worker = paceline.distribute(model, optimizer, strategy=sys.argv[1] if len(sys.argv) > 1 else "all-reduce")
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
generator = torch.Generator().manual_seed(worker.rank)


def backward(inputs: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = (model(inputs) - inputs).pow(2).mean() / 2
    scaler.scale(loss).backward()


for _ in range(20):
    first, second = torch.randn(2, 8, 6, generator=generator)
    with worker.no_sync():
        backward(first)
    backward(second)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

with worker.central_model(), torch.no_grad():
    checksum = model(torch.ones(2, 6)).sum().item()
sys.stdout.write(f"central model of rank {worker.rank}: {checksum:.6f}\n")

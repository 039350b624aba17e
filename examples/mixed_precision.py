"""Accumulation, clipping and mixed precision: bfloat16 autocast and a GradScaler, on a network with batch norm."""

import argparse
import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--strategy")
arguments = parser.parse_args()

torch.manual_seed(1)
digits = paceline.Digits().load(None)
loader = DataLoader(
    TensorDataset(digits.train.inputs, digits.train.targets), arguments.batch_size, shuffle=True
)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(128, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

worker = paceline.distribute(model, optimizer, strategy=arguments.strategy)
shard = worker.shard(loader)

for epoch in range(arguments.epochs):
    for number, (inputs, targets) in enumerate(shard, start=1):
        last = number % arguments.accumulate == 0 or number == len(shard)
        with nullcontext() if last else worker.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss / arguments.accumulate).backward()
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    with worker.central_model(), torch.no_grad():
        accuracy = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean().item()
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: accuracy {accuracy:.4f}\n")

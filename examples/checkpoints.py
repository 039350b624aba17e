"""Evaluation and checkpoints: a script that is started again goes on as if it had never stopped.

With servers, the optimizer's state is theirs, and begins anew.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--strategy")
parser.add_argument("--codec")
parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
arguments = parser.parse_args()

torch.manual_seed(1)
digits = paceline.Digits().load(None)
loader = DataLoader(
    TensorDataset(digits.train.inputs, digits.train.targets), arguments.batch_size, shuffle=True
)
model = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
criterion = nn.CrossEntropyLoss()

worker = paceline.distribute(model, optimizer, strategy=arguments.strategy, codec=arguments.codec)
shard = worker.shard(loader)
parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "worker": worker}

# Workers may differ, so each saves its own.
arguments.checkpoints.mkdir(exist_ok=True)
checkpoint, first = arguments.checkpoints / f"rank-{worker.rank}.pt", 0
if checkpoint.exists():
    saved = torch.load(checkpoint, weights_only=True)
    first = saved.pop("epoch")
    for name, part in parts.items():
        part.load_state_dict(saved[name])

for epoch in range(first, arguments.epochs):
    for inputs, targets in shard:
        criterion(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    with worker.central_model(), torch.no_grad():
        outputs = model(digits.test.inputs)
        loss = criterion(outputs, digits.test.targets).item()
        accuracy = (outputs.argmax(1) == digits.test.targets).float().mean().item()
        central = {name: value.clone() for name, value in model.state_dict().items()}
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: loss {loss:.6f}, accuracy {accuracy:.4f}\n")
        torch.save(central, arguments.checkpoints / "central.pt")
    torch.save({"epoch": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, checkpoint)

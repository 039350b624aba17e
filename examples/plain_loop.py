"""A plain training loop; two lines make it a worker: `torchrun --nproc-per-node 2 examples/plain_loop.py`."""

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--strategy")
arguments = parser.parse_args()

torch.manual_seed(1)
digits = paceline.Digits().load(None)
loader = DataLoader(
    TensorDataset(digits.train.inputs, digits.train.targets), arguments.batch_size, shuffle=True
)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
criterion = nn.CrossEntropyLoss()

worker = paceline.distribute(model, optimizer, strategy=arguments.strategy)
shard = worker.shard(loader)

for epoch in range(arguments.epochs):
    for inputs, targets in shard:
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with worker.central_model(), torch.no_grad():
        accuracy = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean().item()
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: accuracy {accuracy:.4f}\n")

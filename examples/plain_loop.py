"""A plain training loop; two lines make it a worker: `torchrun --nproc-per-node 2 examples/plain_loop.py`."""

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
arguments = parser.parse_args()

torch.manual_seed(1)
teacher = nn.Linear(16, 4)
inputs = torch.randn(1024, 16)
data = TensorDataset(inputs, teacher(inputs).argmax(1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
criterion = nn.CrossEntropyLoss()

worker = paceline.distribute(model, optimizer)
shard = worker.shard(loader)

for epoch in range(arguments.epochs):
    for batch, targets in shard:
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with worker.central_model(), torch.no_grad():
        accuracy = (model(inputs).argmax(1) == data.tensors[1]).float().mean().item()
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: accuracy {accuracy:.4f}\n")

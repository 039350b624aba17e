"""Streams of unknown and unequal lengths: each worker reads its own part and drops what it cannot use."""

import argparse
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--strategy")
arguments = parser.parse_args()

torch.manual_seed(1)
digits = paceline.Digits().load(None)


class Clear(IterableDataset[tuple[Tensor, Tensor]]):
    """The digits of one part that have enough ink; how many that are, nobody knows before."""

    def __init__(self, part: int, parts: int) -> None:
        self.part, self.parts = part, parts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for place in range(self.part, len(digits.train), self.parts):
            image, label = digits.train.inputs[place], digits.train.targets[place]
            if image.mean() > -0.1:
                yield image, label


model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
criterion = nn.CrossEntropyLoss()

worker = paceline.distribute(model, optimizer, strategy=arguments.strategy)
loader = DataLoader(Clear(worker.rank, worker.workers), arguments.batch_size)

for epoch in range(arguments.epochs):
    with worker.join():  # whoever has no more mini-batches follows the others
        for inputs, targets in loader:
            criterion(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    schedule.step()
    with worker.central_model(), torch.no_grad():
        accuracy = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean().item()
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: accuracy {accuracy:.4f}\n")

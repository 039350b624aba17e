"""Loops of workers that do not fit together: ``mistakes.py NAME``, one rank of two."""

import sys

import torch
from torch import nn

import paceline


class Own(paceline.Strategy):
    """Averages gradients by an exchange of its own."""

    sync_point = paceline.SyncPoint.EVERY_STEP

    def worker(self, me):
        while True:
            yield paceline.Gradient()
            yield paceline.AllReduce(me.grad)
            yield paceline.Apply()

    def central(self, me):
        yield from ()
        return me.params


def main(name: str) -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    strategies = {"apart": "local-sgd:period=2", "unknown": "spp", "own": Own()}
    worker = paceline.distribute(model, optimizer, strategy=strategies.get(name, "all-reduce"))

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.randn(3, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if name == "rates":
                rates.step()

    match name:
        case "uneven" | "apart" | "own":
            train(5 + worker.rank)
        case "twice":
            train(2)
            worker.close()
            second = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
            with paceline.distribute(second, optimizer):
                second(torch.randn(3, 4)).pow(2).mean().backward()
                optimizer.step()
        case "exits":
            train(5)
            if worker.rank == 1:
                sys.exit(3)
            train(5)
        case "nothing":
            train(5 * worker.rank)
        case "alone":
            train(5)
            if worker.rank == 0:
                with worker.central_model():
                    pass
            train(1)
        case "rates":
            with worker.join():
                train(5 + worker.rank)
        case "inside":
            with worker.join():
                train(5)
                with worker.central_model():
                    pass


if __name__ == "__main__":
    main(sys.argv[1])

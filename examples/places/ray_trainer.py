"""The workers of Ray Train are those of a run: `RAY_CHDIR_TO_TRIAL_DIR=0 python examples/places/ray_trainer.py`.

The variable has Ray leave the working directory as it is, so that records go to runs/ here.
"""

import argparse
import sys
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def train(config: dict[str, int]) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(1024, 16)
    data = TensorDataset(inputs, nn.Linear(16, 4)(inputs).argmax(1))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # Before Ray destroys the process group: the record is concluded when the block is left.
    with paceline.distribute(model, optimizer, strategy="local-sgd:period=8") as worker:
        for epoch in range(config["epochs"]):
            for batch, targets in worker.shard(loader):
                loss = nn.functional.cross_entropy(model(batch), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            with worker.central_model(), torch.no_grad():
                accuracy = (model(inputs).argmax(1) == data.tensors[1]).float().mean().item()
            ray.train.report({"accuracy": accuracy})
            if worker.rank == 0:
                sys.stdout.write(f"epoch {epoch + 1}: accuracy {accuracy:.4f}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage", type=Path, default=Path("ray-results"))
    arguments = parser.parse_args()
    ray.init(include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(arguments.storage.absolute())),
    )
    trainer.fit()

"""The default job as a script's own loop: ``as_loop.py STRATEGY CODEC BATCH FROM TO OUT``.

From a step other than 0 on, it goes on from what the run up to there has saved beside OUT.
"""

import sys

import torch

import paceline
from paceline.jobs.build import build_job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec


def main(strategy: str, codec: str, batch: int, first: int, last: int, out: str) -> None:
    job = build_job(JobSpec())
    torch.manual_seed(1)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    worker = paceline.distribute(model, optimizer, strategy=strategy, codec=codec)
    parts = {"model": model, "optimizer": optimizer, "worker": worker}
    if first:
        saved = torch.load(f"{out}.{first}.{worker.rank}", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    shards = Shards(samples=len(job.train), batch_sizes=(batch,) * worker.workers, seed=1)
    for step in range(first, last):
        inputs, targets = job.train.take(shards.indices(worker.rank, step))
        job.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({name: part.state_dict() for name, part in parts.items()}, f"{out}.{last}.{worker.rank}")
    with worker.central_model():
        if worker.rank == 0:
            torch.save({name: one.clone() for name, one in model.state_dict().items()}, out)


if __name__ == "__main__":
    spec, codec, batch, first, last, out = sys.argv[1:]
    main(spec, codec, int(batch), int(first), int(last), out)

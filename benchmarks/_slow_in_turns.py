"""A job whose workers are slow in turns: four steps the one, four steps the other."""

import os
import time

from torch import Tensor, nn

from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.jobs.spec import JobSpec

LENGTH = 4
"""Steps for which a worker is slow at a time."""


class SlowInTurns(nn.Module):
    """Sleeps after the forward pass of some training steps."""

    def __init__(self, model: nn.Module, rank: int, extra: float) -> None:
        super().__init__()
        self.model, self._rank, self._extra = model, rank, extra
        self._steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Forward, and a nap where it is this worker's turn."""
        outputs: Tensor = self.model(inputs)
        if self.training:
            if self._steps // LENGTH % 2 == self._rank:
                time.sleep(self._extra)
            self._steps += 1
        return outputs


def build() -> Job:
    """The small network on Fashion-MNIST; what is slow and by how many seconds stands in the environment."""
    job = build_job(JobSpec(data="fashion-mnist", model="cnn", optimizer=os.environ["SLOW_OPTIMIZER"]))
    rank, extra = int(os.environ.get("RANK", "0")), float(os.environ["SLOW_SECONDS"])
    return Job(
        name="slow-in-turns",
        model=lambda: SlowInTurns(job.model(), rank, extra),
        loss=job.loss,
        train=job.train,
        test=job.test,
        optimizer=job.optimizer,
        schedule=job.schedule,
        metrics=job.metrics,
    )

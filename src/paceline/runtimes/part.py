"""What one server keeps: its part of the parameters and of the optimizer; the same in both runtimes."""

from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.jobs.optimizers import clip_norm_
from paceline.runtimes.flat import Flat, flatten_parameters
from paceline.runtimes.optimizers import Rated, flat_optimizer, takes_vector
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.strategies.base import server_slices


class ParameterShard:
    """The real mathematics of one server; every part begins as every worker's model does.

    ``params`` and ``grad`` are the part's own memory: ``apply`` moves the one along the other.
    """

    def __init__(self, job: Job, rank: int, servers: int, seed: int, device: torch.device) -> None:
        streams = AllStreams()
        with undisturbed(streams):
            streams.seed(seed)
            model = job.model().to(device).train()
        flat = flatten_parameters(model)
        self._schedule, self._clip_norm = job.schedule, job.clip_norm
        self.params, self.grad = flat.params, flat.grad
        if servers == 1:
            self._rated = Rated(flat_optimizer(job.optimizer, flat))
            return
        check_divisible(job, servers, flat)
        self.params = server_slices(flat.params, servers)[rank].clone()
        self.grad = torch.zeros_like(self.params)
        own = nn.Parameter(self.params)
        own.grad = self.grad
        self._rated = Rated(job.optimizer([own]))

    def apply(self, epoch: float, rate: float = 1.0) -> None:
        """The optimizer's step on this part, at ``rate`` times the learning rate of this epoch."""
        clip_norm_(self.grad, self._clip_norm)
        self._rated.step(self._schedule(epoch) * rate)

    def state(self) -> dict[str, Any]:
        """Everything that changes while training; tensors and numbers only. ``load`` is its inverse."""
        return {"params": self.params, "optimizer": self._rated.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Become the part that was saved."""
        with torch.no_grad():
            self.params.copy_(state["params"])
        self._rated.load(state["optimizer"])


def check_divisible(job: Job, servers: int, flat: Flat | None = None) -> None:
    """Refuse what cannot work on a part of the vector; the model is looked at without memory."""
    if servers < 2:
        return
    if job.clip_norm is not None:
        raise UsageError(
            f"--servers {servers} and clip_norm={job.clip_norm:g} do not go together: no server knows the norm of the "
            "whole gradient; choose --servers 1 or leave the clipping out"
        )
    if flat is None:
        with torch.device("meta"):
            flat = flatten_parameters(job.model())
    if flat.offsets[-1] < servers:
        raise UsageError(
            f"--servers {servers} cannot share the {flat.offsets[-1]} parameters of job {job.name!r}: "
            "each must keep at least one; choose fewer servers"
        )
    optimizer = job.optimizer(flat.parameters)
    if not takes_vector(optimizer, flat):
        raise UsageError(
            f"--servers {servers} and the optimizer {type(optimizer).__name__} of job {job.name!r} do not go "
            "together: it does not treat every element alike, so no server can step its part alone; "
            "choose --servers 1 or another optimizer"
        )

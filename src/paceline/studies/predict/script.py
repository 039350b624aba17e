"""The step of a script's run: its model is not here, and its parameters and times are in the record."""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.jobs.job import Traceable
from paceline.records.files import DamagedFile, from_document, read_json
from paceline.records.folder import RunFolder
from paceline.records.summary import ScriptModel, Started
from paceline.runtimes.config import read_config


@dataclass(frozen=True, kw_only=True)
class ScriptStep(Traceable):
    """Computes in proportion to the batch and to each parameter's size, from the last parameter to the first.

    Only with the times of a run does that tell how long a step takes. What it holds in memory tells nothing.
    """


def is_script(folder: RunFolder) -> bool:
    return read_config(folder).settings.job.is_script


def script_step(folder: RunFolder) -> ScriptStep:
    try:
        model = from_document(read_json(folder.start), Started).model
    except (OSError, DamagedFile, ValueError):
        model = None
    if model is None or not model.shapes:
        raise UsageError(
            f"{folder.path} is a run of a script that has not recorded the shapes of its parameters; run it again with "
            "this paceline, or predict from its model"
        )
    return ScriptStep(
        name=read_config(folder).settings.job.path or "script",
        model=partial(_Parameters, model),
        compute_loss=lambda made, batch: made(batch),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch=lambda samples: torch.zeros(samples, 1),
    )


class _Parameters(nn.Module):
    def __init__(self, model: ScriptModel) -> None:
        super().__init__()
        dtype = getattr(torch, model.dtype)
        for name, shape in zip(model.names, model.shapes, strict=True):
            self.register_parameter(name.replace(".", "/"), nn.Parameter(torch.empty(shape, dtype=dtype)))
        self.register_buffer("buffers_", torch.empty(model.buffers, dtype=dtype))

    def forward(self, batch: Tensor) -> Tensor:
        loss = batch.sum()
        for one in self.parameters():
            loss = loss + (batch.to(one.dtype) * one.reshape(1, prod(one.shape))).sum()
        return loss

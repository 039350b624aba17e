"""A user's own job by import path; whatever goes wrong in it becomes one sentence."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs.batches import check_loss
from paceline.jobs.data.tensors import as_data
from paceline.jobs.job import Job
from paceline.specs.source import CRASHES, raised


def import_job(path: str) -> Job:
    """Call the function behind "module:function" or "file.py:function" and check the job that it returns."""
    where = f"job {path}"
    job = call(import_function(path, "job"), where)
    if not isinstance(job, Job):
        name, kind = path.rpartition(":")[2], type(job).__name__
        raise UsageError(f"{where}: {name}() returned a {kind}; it must return a paceline.Job")
    return checked_job(where, job)


def import_function(path: str, kind: str) -> Callable[[], Any]:
    """The function behind a path."""
    loaded = specs.load(path, kind)
    if not callable(loaded):
        name = path.rpartition(":")[2]
        raise UsageError(f"{kind} {path}: {name!r} is a {type(loaded).__name__}, not a function")
    function: Callable[[], Any] = loaded
    return function


def call(function: Callable[[], Any], where: str) -> Any:
    """What a user's function returns; ``where`` ends with its path."""
    try:
        return function()
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    except CRASHES as error:
        raise UsageError(f"{where}: {where.rpartition(':')[2]}() raised {raised(error)}") from error


def checked_job(where: str, job: Job) -> Job:
    """The job with its data ready for batches; a UsageError that starts with ``where`` says what is wrong."""
    if isinstance(job.model, nn.Module):
        kind = type(job.model).__name__
        raise UsageError(f"{where}: its model is a {kind} already made; write model=lambda: {kind}(...)")
    functions = {"model": job.model, "optimizer": job.optimizer, "schedule": job.schedule}
    optional = {"loss": job.loss, "compute_loss": job.compute_loss, "collate": job.collate}
    functions |= {name: function for name, function in optional.items() if function is not None}
    functions |= {f"metric {name!r}": metric for name, metric in job.metrics.items()}
    for name, function in functions.items():
        if not callable(function):
            raise UsageError(f"{where}: its {name} is a {type(function).__name__}; it must be a function")
    train, batch = as_data(job.train, f"{where}: its training data", job.collate)
    test = None if job.test is None else as_data(job.test, f"{where}: its test data", job.collate)[0]
    try:
        check_loss(job, batch)
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    return replace(job, train=train, test=test)

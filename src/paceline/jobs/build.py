"""From the words that name a job to the job."""

from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.nn.functional import cross_entropy

from paceline import specs
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.jobs.data.images import Source
from paceline.jobs.imports import import_job
from paceline.jobs.job import Job
from paceline.jobs.models.base import Architecture
from paceline.jobs.spec import JobSpec


def build_job(spec: JobSpec) -> Job:
    """Make a user's own job, or one of the parts that ship; its data is read now."""
    if spec.path is not None:
        return replace(import_job(spec.path), **spec.changes)
    # The words are all read before the data is: a typing mistake should not cost a minute.
    source: Source = specs.build(spec.data, DATA, "data")
    architecture: Architecture = specs.build(spec.model, MODELS, "model")
    optimizer = specs.build(spec.optimizer, OPTIMIZERS, "optimizer")
    schedule = specs.build(spec.schedule, SCHEDULES, "schedule")
    images = source.load(spec.data_dir)
    name = specs.split(spec.model)[0]
    look = architecture.usual.changed(name, images.shape, images.classes)
    return Job(
        name=f"{specs.split(spec.data)[0]}-{name}",
        model=partial(architecture, look.shape, look.classes),
        loss=cross_entropy,
        train=images.train,
        test=images.test,
        optimizer=optimizer,
        schedule=schedule,
        metrics={"accuracy": correct},
        **spec.changes,
    )


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples' highest score is their class's."""
    return (outputs.argmax(dim=1) == targets).sum()

"""The words that name a job, before anything is loaded."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job by its parts, or a user's own by import path."""

    path: str | None = None
    """A user's own job, "module:function"; the parts below are then not used."""
    data: str = "digits"
    """A spec such as "digits" or "synthetic:shape=3x32x32,classes=10"."""
    data_dir: str | None = None
    """The folder that holds the data's files; None looks in the usual places."""
    model: str = "cnn"
    optimizer: str = "sgd"
    schedule: str = "constant"
    accumulate: int | None = None
    """Mini-batches whose gradients are added up before a step; None, here and below, is as the job says."""
    clip_norm: float | None = None
    """The norm to which gradients are clipped."""
    precision: str | None = None
    """In which forward is computed."""

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes of the job that it names."""
        names = ("accumulate", "clip_norm", "precision")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

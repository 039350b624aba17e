"""The words that name a job, before anything is loaded."""

from dataclasses import dataclass


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

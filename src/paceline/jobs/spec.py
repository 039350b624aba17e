"""What names a job, before anything is loaded, and settings that read themselves."""

from dataclasses import dataclass
from typing import Any, Self

from paceline.errors import UsageError
from paceline.specs.objects import ObjectSpec


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job by its parts, or a user's own by import path."""

    path: str | None = None
    """A user's own job, "module:function", or a script, "train.py"; the parts below are then not used."""
    data: str = "digits"
    data_dir: str | None = None
    """The folder that holds the data's files; None looks in the usual places."""
    model: str = "cnn"
    optimizer: str = "sgd"
    schedule: str = "constant"
    accumulate: int | None = None
    """As in ``Job``; None, here and below, is as the job says."""
    clip_norm: float | None = None
    precision: str | None = None
    label_smoothing: float | None = None
    """Of the cross entropy that the parts are trained with; a user's own job brings its own loss."""

    @property
    def is_script(self) -> bool:
        """Whether it is a script with a loop of its own, which decides its data, its batches and when it ends."""
        return self.path is not None and ":" not in self.path and not isinstance(self.path, ObjectSpec)

    @property
    def changes(self) -> dict[str, Any]:
        names = ("accumulate", "clip_norm", "precision")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ImageShape(tuple[int, int, int]):
    """Channels, height and width of an image; "3x32x32" as text."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        sides = text.strip().lower().split("x")
        if len(sides) != 3 or not all(side.isdecimal() and int(side) for side in sides):
            raise UsageError(
                f"{text!r} is not the shape of an image: write channels x height x width, as in 3x32x32"
            )
        return cls(int(side) for side in sides)

    def __str__(self) -> str:
        return "x".join(map(str, self))


class Epochs(tuple[float, ...]):
    """Epochs at which something happens; "30+60+80" as text."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            epochs = cls(float(part) for part in text.split("+"))
        except ValueError:
            epochs = cls()
        if (
            not epochs
            or list(epochs) != sorted(set(epochs))
            or not 0 < epochs[0] <= epochs[-1] < float("inf")
        ):
            raise UsageError(
                f"{text!r} is not a list of epochs: they must be more than 0 and rise, as in 30+60+80"
            )
        return epochs

    def __str__(self) -> str:
        return "+".join(f"{epoch:g}" for epoch in self)

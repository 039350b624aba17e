"""Samples by index: tensors in memory, or any torch data set."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from paceline.errors import Mistake
from paceline.jobs.job import Batch, Data


class TensorData:
    """Inputs and targets in memory; a batch is one gather, whatever its size."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise Mistake(
                f"there are {len(inputs):,} inputs and {len(targets):,} targets; each input needs its target"
            )
        self._tensors = inputs, targets

    @property
    def inputs(self) -> Tensor:
        """All inputs."""
        return self._tensors[0]

    @property
    def targets(self) -> Tensor:
        """All targets."""
        return self._tensors[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Tensor) -> Batch:
        """Copies of these samples."""
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices)


class DrawnData(TensorData):
    """Samples that are made when the first of them is asked for; until then they take no memory."""

    def __init__(self, samples: int, shape: tuple[int, ...], draw: Callable[[], Batch]) -> None:
        """``draw`` makes all inputs and targets; it is called once at the most."""
        self._samples, self._shape, self._draw = samples, shape, draw

    @cached_property
    def _tensors(self) -> Batch:  # type: ignore[override]
        return self._draw()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self._shape

    def __len__(self) -> int:
        return self._samples


@runtime_checkable
class MapStyle(Protocol):
    """What torch calls a map-style data set: a length, and samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class DatasetData:
    """Any map-style data set of (input, target) samples, batched as torch's own loader does it."""

    def __init__(self, dataset: MapStyle) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Batch:
        """Fetch and stack these samples, one by one unless the data set fetches several at once."""
        if not len(indices):
            inputs, targets = self.take(torch.zeros(1, dtype=torch.int64))
            return inputs[:0], targets[:0]
        batch = default_collate(self._samples(indices.tolist()))
        if not _is_pair(batch):
            raise Mistake("a sample is not an (input, target) pair of tensors, arrays or numbers")
        return batch[0], batch[1]

    def _samples(self, indices: list[int]) -> list[Any]:
        fetch_many = getattr(self.dataset, "__getitems__", None)
        samples: list[Any] = fetch_many(indices) if fetch_many else [self.dataset[index] for index in indices]
        return samples


def as_data(thing: Any, where: str) -> Data:
    """Make a torch data set, or a ``Data`` as it is, ready for batches; ``where`` names it in a mistake."""
    data = _wrap(thing, where)
    if not len(data):
        raise Mistake(f"{where} has no samples; a job needs at least one")
    try:
        batch = data.take(torch.zeros(1, dtype=torch.int64))
    except Mistake as mistake:
        raise Mistake(f"{where}: {mistake}") from mistake
    except Exception as error:
        raise Mistake(f"{where}: its first sample raised {type(error).__name__}: {error}") from error
    if not _is_pair(batch):
        raise Mistake(
            f"{where}: take(indices) returned a {type(batch).__name__}; it must return (inputs, targets)"
        )
    return data


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    )


def _wrap(thing: Any, where: str) -> Data:
    # Some data sets of other libraries have a ``take`` of another meaning; ours have no ``__getitem__``.
    if type(thing) is TensorDataset and len(thing.tensors) == 2:
        return TensorData(*thing.tensors)
    if isinstance(thing, MapStyle):
        return DatasetData(thing)
    if hasattr(thing, "take") and hasattr(thing, "__len__"):
        data: Data = thing
        return data
    raise Mistake(
        f"{where} is a {type(thing).__name__}; it must be a torch Dataset with a length and samples by "
        "index, or a Data with a length and take(indices)"
    )

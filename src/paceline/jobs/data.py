"""Samples by index: tensors in memory, or any torch data set."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from paceline.errors import UsageError, raised
from paceline.jobs.batches import Batch
from paceline.jobs.job import Data

Collate = Callable[[list[Any]], Batch]


class TensorData:
    """Inputs and targets in memory; a batch is one gather, whatever its size."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise UsageError(
                f"there are {len(inputs):,} inputs and {len(targets):,} targets; each input needs its target"
            )
        self.inputs, self.targets = inputs, targets

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Tensor) -> Batch:
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices)


class DrawnData:
    """Samples that ``draw`` makes, all at once, when the first is asked for; until then they take no memory."""

    def __init__(self, samples: int, shape: tuple[int, ...], draw: Callable[[], Batch]) -> None:
        self._samples, self.shape, self._draw = samples, shape, draw

    @cached_property
    def _data(self) -> TensorData:
        return TensorData(*self._draw())

    def __len__(self) -> int:
        return self._samples

    def take(self, indices: Tensor) -> Batch:
        return self._data.take(indices)

    @property
    def targets(self) -> Tensor:
        return self._data.targets


class RepeatedData:
    """Other data, of which a batch is taken once for each size and then given again, whatever is asked for."""

    def __init__(self, data: Data) -> None:
        self._data, self._batches = data, dict[int, Batch]()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def targets(self) -> Any:
        return self._data.targets  # type: ignore[attr-defined]

    def take(self, indices: Tensor) -> Batch:
        if len(indices) not in self._batches:
            with torch.random.fork_rng(
                devices=[]
            ):  # what it draws must not change the model's random numbers
                self._batches[len(indices)] = self._data.take(indices)
        return self._batches[len(indices)]


IN_MEMORY = (TensorData, DrawnData, RepeatedData)
"""Data whose batches draw no random numbers."""


class DatasetData:
    """A map-style data set, with a length and samples by index, batched as torch's own loader does it."""

    def __init__(self, dataset: Any, collate: Collate | None = None) -> None:
        self.dataset, self._collate = dataset, collate or default_collate

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def targets(self) -> Any:
        """The label of each sample, where the data set has them under the name that torchvision gives them."""
        return self.dataset.targets

    def take(self, indices: Tensor) -> Batch:
        fetch_many = getattr(self.dataset, "__getitems__", None)
        wanted = indices.tolist()
        return self._collate(fetch_many(wanted) if fetch_many else [self.dataset[index] for index in wanted])


def as_data(thing: Any, where: str, collate: Collate | None = None) -> tuple[Data, Batch]:
    """A torch data set, or a ``Data`` as it is, ready for batches, and a batch of one sample of it."""
    data = _wrap(thing, where, collate)
    if not len(data):
        raise UsageError(f"{where} has no samples; a job needs at least one")
    try:
        return data, data.take(torch.zeros(1, dtype=torch.int64))
    except Exception as error:
        hint = ""
        if collate is None and "default_collate" in str(error):
            hint = "; convert it in the data set, or give collate=a function from samples to a batch"
        raise UsageError(f"{where}: its first sample raised {raised(error)}{hint}") from error


def _wrap(thing: Any, where: str, collate: Collate | None) -> Data:
    # Some data sets of other libraries have a ``take`` of another meaning; ours have no ``__getitem__``.
    if type(thing) is TensorDataset and len(thing.tensors) == 2 and collate is None:
        return TensorData(*thing.tensors)
    kind = type(thing).__name__
    if isinstance(thing, IterableDataset):
        raise UsageError(
            f"{where} is an IterableDataset, whose samples have no index, so that they cannot be shuffled and shared "
            "among workers; give a Dataset with a length and samples by index"
        )
    if hasattr(thing, "__len__") and hasattr(thing, "__getitem__"):
        return DatasetData(thing, collate)
    if not (hasattr(thing, "take") and hasattr(thing, "__len__")):
        raise UsageError(
            f"{where} is a {kind}; it must be a torch Dataset with a length and samples by index, or a Data with a "
            "length and take(indices)"
        )
    if collate is not None:
        raise UsageError(
            f"{where} is a {kind}, whose take(indices) makes batches itself; leave collate out, or give a Dataset"
        )
    data: Data = thing
    return data

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import DATA
from paceline.jobs.data import DatasetData, TensorData, as_data
from paceline.jobs.datasets import Images, Synthetic
from paceline.jobs.job import Data


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < 7:
            raise IndexError(index)
        return torch.full((2, 3), float(index)), index**2


def synthetic(settings: str = "") -> Images:
    images: Images = specs.build(f"synthetic:{settings}", DATA, "data").load(None)
    return images


def everything(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = data.take(torch.arange(len(data)))
    return inputs, targets


def test_a_torch_dataset_gives_what_tensors_give() -> None:
    whole = TensorData(torch.arange(7.0).view(7, 1, 1).expand(7, 2, 3), torch.arange(7) ** 2)
    for indices in (torch.tensor([5, 0, 5]), torch.tensor([6])):
        for ours, theirs in zip(whole.take(indices), DatasetData(Squares()).take(indices), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype


def test_a_batch_is_a_copy_so_that_changing_it_leaves_the_data_alone() -> None:
    data = TensorData(torch.ones(4, 2), torch.arange(4))
    data.take(torch.tensor([0, 1]))[0].zero_()
    assert data.inputs.sum() == 8


def test_any_map_style_dataset_is_wrapped_and_a_data_is_kept() -> None:
    data = TensorData(torch.ones(4, 2), torch.arange(4))
    assert as_data(data, "x")[0] is data
    assert isinstance(as_data(TensorDataset(data.inputs, data.targets), "x")[0], TensorData), (
        "the fast path is lost"
    )
    subset, _ = as_data(Subset(Squares(), [3, 4]), "x")
    assert subset.take(torch.tensor([1]))[1].tolist() == [16]
    assert as_data([(torch.ones(2), 1.0)], "x")[1][0].shape == (1, 2)


class Broken(Squares):
    def __getitem__(self, index: int) -> Any:
        return {}["nokey"]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (Stream(), "its train data is an IterableDataset, whose samples have no index"),
        ([], "no samples"),
        (
            [(object(), 1)],
            "its first sample raised TypeError: default_collate.*; convert it .* or give collate=",
        ),
        (None, "is a NoneType"),
        (Broken(), r"its first sample raised KeyError: 'nokey' \(test_data.py:\d+ in __getitem__\)$"),
    ],
)
def test_what_cannot_be_batched_is_refused_by_name(thing: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        as_data(thing, "its train data")


def test_inputs_without_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="4 inputs and 3 targets"):
        TensorData(torch.ones(4, 2), torch.arange(3))


def test_synthetic_images_have_the_shape_that_was_asked_for_and_come_from_the_seed() -> None:
    images = synthetic("shape=1x5x9,classes=4,train=30,test=20")
    inputs, targets = everything(images.train)
    assert inputs.shape == (30, *images.shape) == (30, 1, 5, 9)
    assert len(images.test) == len(everything(images.test)[0]) == 20
    assert set(targets.tolist()) <= {0, 1, 2, 3}
    again, other = (synthetic(f"shape=1x5x9,classes=4,train=30,test=20,seed={seed}") for seed in (0, 1))
    assert torch.equal(inputs, everything(again.train)[0])
    assert not torch.equal(inputs, everything(other.train)[0])


def test_synthetic_images_can_be_learned_from_the_training_part() -> None:
    images = synthetic("shape=1x8x8,train=500,test=200")
    (inputs, targets), (test, labels) = everything(images.train), everything(images.test)
    centres = torch.stack([inputs[targets == c].mean(dim=0) for c in range(10)])
    nearest = torch.cdist(test.flatten(1), centres.flatten(1)).argmin(dim=1)
    assert (nearest == labels).float().mean() > 0.8, "the classes carry no signal"
    assert abs(inputs.std() - 1) < 0.2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("shape=32x32", "'32x32' is not the shape of an image.*3x32x32"),
        ("shape=3x0x3", "'3x0x3' is not the shape"),
        ("classes=1", "data 'synthetic:classes=1': classes=1 is out of range; it must be at least 2"),
        ("train=0", "train=0 is out of range"),
        ("noise=-1", "noise=-1 is out of range"),
        ("noise=nan", "noise=nan is out of range"),
    ],
)
def test_impossible_synthetic_data_is_refused(settings: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        synthetic(settings)


def test_a_folder_for_synthetic_data_is_not_ignored() -> None:
    with pytest.raises(UsageError, match="synthetic reads no files"):
        specs.build("synthetic", DATA, "data").load("somewhere")


def test_synthetic_data_takes_no_memory_until_it_is_used():
    """Ten thousand simulated workers need a large data set's length, and not its pixels."""
    images = Synthetic(train=10**9).load(None)
    assert len(images.train) == 10**9
    assert images.shape == (3, 32, 32)


def test_synthetic_parts_do_not_depend_on_which_is_drawn_first():
    one, other = Synthetic(train=20, test=20).load(None), Synthetic(train=20, test=20).load(None)
    first = torch.arange(20)
    train, test = one.train.take(first), one.test.take(first)
    assert torch.equal(other.test.take(first)[0], test[0])
    assert torch.equal(other.train.take(first)[0], train[0])
    assert not torch.equal(train[0], test[0])

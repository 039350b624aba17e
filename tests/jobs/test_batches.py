"""Batches of any nesting, and every way to compute a loss of them."""

from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline import Job
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.batches import batch_like, batch_loss, map_tensors, targets_of
from paceline.jobs.build import checked_job
from paceline.jobs.data import DatasetData
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Sgd


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Graph:
    nodes: Tensor
    name: str


def test_tensors_are_mapped_in_containers_of_every_type_and_nothing_else_changes() -> None:
    one = torch.ones(2)
    batch = {
        "pair": (one, [one]),
        "point": Point(one, one),
        "graph": Graph(one, "g"),
        "encoding": UserDict(ids=one),
        "text": "word",
    }
    doubled = map_tensors(lambda tensor: tensor * 2, batch)
    assert doubled["pair"][1][0].tolist() == [2, 2]
    assert isinstance(doubled["point"], Point)
    assert doubled["point"].y.tolist() == [2, 2]
    assert doubled["graph"].name == "g"
    assert doubled["graph"].nodes.tolist() == [2, 2]
    assert isinstance(doubled["encoding"], UserDict)
    assert doubled["encoding"]["ids"].tolist() == [2, 2]
    assert doubled["text"] == "word"
    assert one.tolist() == [1, 1], "a copy is made, the batch stays"


class Two(nn.Module):
    """Takes two inputs; returns its loss with a label."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor, labels: Tensor | None = None) -> Any:
        scores = self.linear(left + right)
        return (
            scores if labels is None else SimpleNamespace(loss=cross_entropy(scores, labels), scores=scores)
        )


def job(**parts: Any) -> Job:
    sample = {"left": torch.ones(3), "right": torch.ones(3), "labels": 1}
    return Job(**({"name": "two", "model": Two, "train": [sample] * 4, "optimizer": Sgd()} | parts))


def in_dict(left: Tensor, right: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"left": left, "right": right, "labels": labels}


PARTS = (torch.ones(4, 3), torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))


def test_every_form_of_a_batch_gives_the_same_loss() -> None:
    model = Two()
    wanted = cross_entropy(model(*PARTS[:2]), PARTS[2]).item()
    assert batch_loss(job(loss=cross_entropy), model, PARTS).item() == wanted
    assert batch_loss(job(loss=cross_entropy), model, list(PARTS)).item() == wanted
    assert batch_loss(job(), model, PARTS).item() == wanted
    assert batch_loss(job(), model, in_dict(*PARTS)).item() == wanted
    assert batch_loss(job(), model, UserDict(in_dict(*PARTS))).item() == wanted
    own = job(compute_loss=lambda model, batch: model(*batch).loss)
    assert batch_loss(own, model, PARTS).item() == wanted
    assert targets_of(PARTS) is PARTS[2]
    assert targets_of({"left": 1}) == {"left": 1}


@pytest.mark.parametrize(
    ("parts", "batch", "says"),
    [
        (
            {"loss": cross_entropy},
            (*PARTS[:1], PARTS[2]),
            r"a batch has 1 inputs and a target, and Two.forward takes",
        ),
        (
            {},
            {"left": PARTS[0], "label": PARTS[2]},
            r"has the keys left, label, and Two.forward takes \(left, right",
        ),
        ({}, PARTS[:2], "the model returned a tensor of shape .*, which holds no loss; give loss=..."),
        (
            {"compute_loss": lambda _, __: 3.0},
            PARTS,
            "the loss of 'two' is a float; it must give the batch's mean",
        ),
        ({"compute_loss": lambda _, __: torch.ones(1)}, PARTS, "does not depend on any trainable parameter"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_in_a_sentence(parts: Any, batch: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        batch_loss(job(**parts), Two(), batch)


def test_an_error_inside_the_model_stays_the_users_own() -> None:
    with pytest.raises(TypeError, match="can only concatenate"):
        batch_loss(job(), Two(), ("text", 1, None))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"loss": cross_entropy},
            "a batch is a dict with the keys left, right, labels, and loss.*write compute_loss=",
        ),
        ({"loss": cross_entropy, "compute_loss": max}, "both loss and compute_loss"),
        ({"collate": 3}, "its collate is a int; it must be a function"),
        (
            {"train": [{"text": object()}]},
            "its first sample raised TypeError: default_collate.*give collate=",
        ),
    ],
)
def test_a_job_that_cannot_work_is_refused_before_it_starts(parts: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"--job mine: .*{says}"):
        checked_job("--job mine", job(**parts))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"accumulate": 0}, "accumulate=0 is out of range"),
        ({"loader_workers": 1.5}, "loader_workers=1.5 is out of range"),
        ({"clip_norm": 0.0}, "clip_norm=0 is out of range"),
        ({"precision": "fp16"}, "is not supported .fp16 needs loss scaling.; choose fp32 or bf16"),
        ({"precision": "half"}, "precision='half' is not supported; choose fp32 or bf16"),
        ({"metrics": {"accuracy": max}}, "the metric 'accuracy' is computed on test data, and there is none"),
    ],
)
def test_settings_out_of_range_are_refused_by_the_job_itself(parts: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        job(**parts)


def pad(samples: list[list[int]]) -> dict[str, Tensor]:
    """Stacked, joined end to end, and of a size that stays."""
    return {
        "stacked": torch.tensor(samples),
        "joined": torch.cat([torch.tensor(one) for one in samples]),
        "fixed": torch.zeros(2),
    }


def test_a_batch_without_memory_has_the_shapes_of_the_real_one() -> None:
    data = DatasetData([[1, 2, 3], [4, 5, 6]], pad)
    real = batch_like(data.take, 5)
    with torch.device("meta"):
        made = batch_like(data.take, 5)
    for key, tensor in real.items():
        assert made[key].is_meta
        assert (made[key].shape, made[key].dtype) == (tensor.shape, tensor.dtype)
    lists = DatasetData([torch.ones(2)], lambda samples: samples)  # one tensor more with every sample
    with torch.device("meta"):
        assert [one.is_meta for one in batch_like(lists.take, 3)] == [True] * 3


def test_a_dict_batch_is_traced_as_the_pair_is() -> None:
    def pair(samples: int) -> Any:
        return torch.ones(samples, 3), torch.ones(samples, 3), torch.zeros(samples, dtype=torch.int64)

    parts: Any = {"name": "two", "model": Two, "optimizer": Sgd()}
    plain = trace(Traceable(**parts, batch=pair, loss=cross_entropy), 4)
    dicts = trace(Traceable(**parts, batch=lambda samples: in_dict(*pair(samples))), 4)
    assert [one.name for one in dicts.forward] == [one.name for one in plain.forward]
    assert sum(one.flops for one in dicts.backward) == sum(one.flops for one in plain.backward)
    clipped = trace(Traceable(**parts, batch=pair, loss=cross_entropy, clip_norm=1.0), 4)
    assert len(clipped.apply) > len(plain.apply)

"""Accumulation, clipping, bf16 and loader processes, on one replica."""

import random
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline import Job, TensorData
from paceline.costs.device import StepCost, accumulated
from paceline.errors import UsageError
from paceline.jobs.build import checked_job
from paceline.jobs.datasets import Synthetic
from paceline.jobs.optimizers import Sgd
from paceline.jobs.sharding import Shards
from paceline.records.spans import StepBreakdown
from paceline.runtimes import loading
from paceline.runtimes.replica import ParameterShard, Replica, check_divisible

CPU = torch.device("cpu")


def job(**parts: Any) -> Job:
    made = torch.Generator().manual_seed(3)
    data = TensorData(torch.randn(50, 6, generator=made), torch.randint(3, (50,), generator=made))
    usual = {
        "name": "small",
        "model": lambda: nn.Linear(6, 3),
        "loss": cross_entropy,
        "train": data,
        "test": data,
    }
    return Job(**(usual | {"optimizer": Sgd(lr=0.5)} | parts))


def trained(job: Job, batch: int, steps: int = 4) -> Tensor:
    """A worker's parameters after some steps, the last of an epoch among them."""
    sizes = (batch * job.accumulate,)
    replica = Replica(job, Shards(len(job.train), sizes, 1), 0, 1, CPU)
    for step in range(steps):
        replica.gradient(step, 1.0)
        replica.apply(0.0)
    replica.close()
    return replica.flat.params.clone()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_accumulated_mini_batches_are_the_whole_batch(clip: float | None) -> None:
    """50 samples in steps of 16: the last step of an epoch has 2, in one mini-batch of up to 4."""
    whole = trained(job(clip_norm=clip), 16)
    assert torch.allclose(trained(job(clip_norm=clip, accumulate=4), 4), whole, rtol=0, atol=1e-6)
    assert not torch.allclose(trained(job(clip_norm=clip), 4), whole, rtol=0, atol=1e-4)


def test_clipping_is_torchs_own() -> None:
    replica, model = Replica(job(clip_norm=0.1), Shards(50, (10,), 1), 0, 1, CPU), nn.Linear(6, 3)
    made = torch.randn(21)
    replica.flat.grad.copy_(made)
    replica.apply(0.0)
    for one, part in zip(model.parameters(), made.split([18, 3]), strict=True):
        one.grad = part.view_as(one).clone()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert torch.allclose(replica.flat.grad, torch.cat([one.grad.flatten() for one in model.parameters()]))  # type: ignore[union-attr]
    part = ParameterShard.of(job(clip_norm=0.1), 0, 1, 1, CPU)
    part.grad.copy_(made)
    part.apply(0.0)
    assert torch.equal(part.grad, replica.flat.grad), "a server clips as a worker does"
    with pytest.raises(UsageError, match=r"2 servers cannot share job .*: clip_norm=0\.1 needs the norm"):
        check_divisible(job(clip_norm=0.1), 2)


def test_bf16_computes_forward_in_bf16_and_keeps_the_parameters() -> None:
    seen: list[torch.dtype] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return cross_entropy(outputs, targets)

    params = trained(job(precision="bf16", loss=loss), 16)
    assert set(seen) == {torch.bfloat16}
    assert params.dtype == torch.float32
    exact = trained(job(), 16)
    assert not torch.equal(params, exact)
    assert torch.allclose(params, exact, rtol=0, atol=0.05)


class Noisy:
    """Draws from every stream there is."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(6) + random.random() + index, index % 3


def noisy(**parts: Any) -> Job:
    return checked_job("--job x", job(train=Noisy(), test=Noisy(), **parts))


def test_loader_processes_change_no_result_and_end_when_they_are_closed() -> None:
    here = trained(noisy(accumulate=2), 4)
    assert torch.equal(trained(noisy(accumulate=2, loader_workers=2), 4), here)
    assert not psutil.Process().children(recursive=True), "a loader is left"


def test_a_batch_depends_on_its_step_alone_so_that_a_resumed_run_sees_the_same() -> None:
    one, other = (Replica(noisy(), Shards(30, (5,), 1), 0, 1, CPU) for _ in range(2))
    batches = [next(one.batches(step))[0] for step in range(4)]
    torch.rand(3)
    assert torch.equal(next(other.batches(3))[0], batches[3])


@pytest.mark.parametrize("processes", [0, 2])
def test_evaluation_scores_every_sample_once_with_any_loss(processes: int) -> None:
    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(float(len(targets)))

    made = noisy(
        loss=None,
        compute_loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        metrics={"seen": correct},
        loader_workers=processes,
    )
    replica = Replica(made, Shards(30, (5,), 1), 0, 1, CPU)
    sums = replica.evaluate(replica.flat.params, replica.buffers, 0, 1)
    assert sums[3:].tolist() == [30, 30]
    around = replace(made, compute_loss=lambda model, batch: cross_entropy(model.forward(batch[0]), batch[1]))
    replica = Replica(around, Shards(30, (5,), 1), 0, 1, CPU)
    with pytest.raises(UsageError, match="does not call the model itself"):
        replica.evaluate(replica.flat.params, replica.buffers, 0, 1)


def test_synthetic_data_has_the_fast_path_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch would cost eight times as much, and checkpoints of older versions could not be resumed."""
    data = Synthetic(train=20).load(None).train
    assert Replica(job(train=data), Shards(20, (5,), 1), 0, 1, CPU).rng.keys() == {"torch"}
    monkeypatch.delattr(loading, "AllStreams")
    (batch,) = loading.load(data, [loading.Request([3, 4], seed=1)], 0)
    assert batch[1].tolist() == data.take(torch.tensor([3, 4]))[1].tolist()


def test_without_test_data_only_training_is_counted() -> None:
    replica = Replica(job(test=None), Shards(50, (5,), 1), 0, 1, CPU)
    assert replica.evaluate(replica.flat.params, replica.buffers, 0, 1).tolist() == [0, 0, 0, 0]


def test_accumulation_costs_compute_and_only_the_last_gradients_are_complete() -> None:
    step = StepBreakdown(data=0.1, forward=1.0, backward=2.0, apply=0.5)
    cost = StepCost(samples=8, step=step, ready=(0.25, 1.0), spread=0.1)
    four = accumulated(cost, 4)
    assert (four.samples, four.step.forward, four.step.backward, four.step.apply) == (32, 4.0, 8.0, 0.5)
    assert four.ready == (0.8125, 1.0), "6 s of backward and a quarter of the last one"
    assert accumulated(cost, 1) == cost

"""LARS and LAMB against their papers' formulas, one parameter at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from command import run_json
from paceline import specs
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs import OPTIMIZERS
from paceline.jobs.build import build_job, traceable_of
from paceline.jobs.layerwise import LAMB, LARS
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.records.tensors import read_tensors, write_tensors
from paceline.runtimes.replica import Replica, check_divisible

RATES = (0.5, 0.5, 2.0, 0.1, 0.1)
"""The rate changes from step to step: momentum that had the rate in it would need a correction."""


def model() -> nn.Module:
    torch.manual_seed(5)
    made = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    nn.init.zeros_(made[3].weight)
    return made


def gradients(of: nn.Module) -> Iterator[list[Tensor]]:
    made = torch.Generator().manual_seed(6)
    for _ in RATES:
        yield [torch.randn(one.shape, generator=made) for one in of.parameters()]


def lars_by_hand(trained: nn.Module, momentum: float, decay: float, trust: float) -> None:
    velocities = [torch.zeros_like(one) for one in trained.parameters()]
    for rate, grads in zip(RATES, gradients(trained), strict=True):
        for weight, grad, velocity in zip(trained.parameters(), grads, velocities, strict=True):
            update = grad.clone()
            if weight.dim() > 1:
                ratio = (
                    trust * weight.norm() / (grad.norm() + decay * weight.norm()) if weight.norm() else 1.0
                )
                update = ratio * (grad + decay * weight.data)
            velocity.mul_(momentum).add_(update)
            weight.data -= rate * velocity


def lamb_by_hand(trained: nn.Module, beta1: float, beta2: float, eps: float, decay: float) -> None:
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in trained.parameters()]
    for step, (rate, grads) in enumerate(zip(RATES, gradients(trained), strict=True), start=1):
        for weight, grad, (mean, square) in zip(trained.parameters(), grads, moments, strict=True):
            mean.copy_(beta1 * mean + (1 - beta1) * grad)
            square.copy_(beta2 * square + (1 - beta2) * grad**2)
            direction = (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt() + eps)
            if weight.dim() > 1:
                direction = direction + decay * weight.data
                if weight.norm() > 0 and direction.norm() > 0:
                    direction = direction * weight.norm() / direction.norm()
            weight.data -= rate * direction


CASES: dict[str, Callable[[nn.Module], None]] = {
    "lars:lr=1,weight_decay=0.1,trust=0.02": lambda one: lars_by_hand(one, 0.9, 0.1, 0.02),
    "lars:lr=1,momentum=0,weight_decay=0,trust=0.02": lambda one: lars_by_hand(one, 0.0, 0.0, 0.02),
    "lamb:lr=1,weight_decay=0.1": lambda one: lamb_by_hand(one, 0.9, 0.999, 1e-6, 0.1),
    "lamb:lr=1,beta1=0.5,beta2=0.7,eps=0.01,weight_decay=0": lambda one: lamb_by_hand(
        one, 0.5, 0.7, 0.01, 0.0
    ),
}


@pytest.mark.parametrize("spec", CASES)
def test_a_step_is_the_papers(spec: str) -> None:
    ours, theirs, begun = model(), model(), model()
    optimizer = specs.build(spec, OPTIMIZERS, "optimizer")(ours.parameters())
    for rate, grads in zip(RATES, gradients(ours), strict=True):
        for parameter, grad in zip(ours.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    CASES[spec](theirs)
    for one, other, first in zip(ours.parameters(), theirs.parameters(), begun.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(one, first, atol=1e-3)


@pytest.mark.parametrize("optimizer", ["lars", "lamb", "sgd:decay=weights"])
def test_a_replica_that_was_saved_goes_on_as_if_nothing_had_happened(optimizer: str, tmp_path: Path) -> None:
    """If this failed, the first steps of a resumed run would be those of a new one."""
    job = build_job(JobSpec(model="mlp", optimizer=optimizer))
    through, resumed = (Replica(job, Shards(1437, (32,), 1), 0, 1, torch.device("cpu")) for _ in range(2))
    for step in range(4):
        if step == 2:
            write_tensors(tmp_path / "saved", through.state())
            resumed.load(read_tensors(tmp_path / "saved"))
        for replica in (through, resumed)[: 1 + (step > 1)]:
            replica.gradient(step, 1.0)
            replica.apply(0.0)
    assert torch.equal(through.flat.params, resumed.flat.params)


@pytest.mark.parametrize(("name", "vectors"), [("lars", 1), ("lars:momentum=0", 0), ("lamb", 2)])
def test_their_state_and_their_operators_are_traced(name: str, vectors: int) -> None:
    """If this failed, the memory of a run with them would be predicted as that of plain SGD, or not at all."""
    traced = trace(traceable_of("mlp", optimizer=name), 8)
    assert traced.optimizer == vectors * 4 * traced.size
    assert traced.apply
    assert sum(one.read + one.written for one in traced.apply) >= (2 + vectors) * 4 * traced.size


@pytest.mark.parametrize(("name", "kind"), [("lars", LARS), ("lamb", LAMB)])
def test_several_servers_refuse_them(name: str, kind: type) -> None:
    """A server has a part of the vector, and knows of no layer."""
    job = build_job(JobSpec(optimizer=name))
    check_divisible(job, 1)
    with pytest.raises(UsageError, match=f"{kind.__name__} does not treat every element alike"):
        check_divisible(job, 2)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_they_learn_the_digits_in_virtual_time(name: str, tmp_path: Path) -> None:
    """If this failed, their defaults would be of no use."""
    options = ("--optimizer", name, "--batch-size", "64", "--workers", "2", "--epochs", "4")
    assert run_json("simulate", *options, cwd=tmp_path)["summary"]["final"]["accuracy"] > 0.8


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="trust=0 is out of range; it must be more than 0"):
        specs.build("lars:trust=0", OPTIMIZERS, "optimizer")

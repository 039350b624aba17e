"""A server's part steps as the whole model would, and can be put away and taken up again."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import optim

from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.runtimes.replica import ParameterShard, Replica, check_divisible
from paceline.strategies.base import server_slices

CPU = torch.device("cpu")


def job_with(optimizer: str):
    return build_job(
        JobSpec(data="synthetic", model="mlp:hidden=8", optimizer=optimizer, schedule="step:at=2")
    )


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parts_together_step_as_a_worker_does(servers: int, optimizer: str) -> None:
    job = job_with(optimizer)
    replica = Replica(job, Shards(len(job.train), (4,), 1), 0, 1, CPU)
    keepers = [ParameterShard.of(job, rank, servers, 1, CPU) for rank in range(servers)]
    for epoch in range(4):
        torch.manual_seed(epoch)
        replica.flat.grad.copy_(torch.randn_like(replica.flat.grad))
        for part, grad in zip(keepers, server_slices(replica.flat.grad, servers), strict=True):
            part.grad.copy_(grad)
            part.apply(epoch)
        replica.apply(epoch)
    together = torch.cat([part.params for part in keepers])
    if servers == 1:
        assert torch.equal(together, replica.flat.params)
    assert torch.allclose(together, replica.flat.params, rtol=0, atol=1e-7)


def test_a_part_that_is_put_away_goes_on_as_if_it_had_not() -> None:
    job = job_with("adam")
    one, other = ParameterShard.of(job, 1, 2, 1, CPU), ParameterShard.of(job, 1, 2, 1, CPU)
    one.grad.fill_(0.5)
    one.apply(0)
    other.load(deepcopy(one.state()))
    for part in (one, other):
        part.grad.fill_(-1.0)
        part.apply(3)
    assert torch.equal(one.params, other.params)


def test_an_optimizer_that_looks_at_whole_parameters_needs_one_server() -> None:
    job = replace(job_with("sgd"), optimizer=lambda parameters: optim.Adafactor(parameters))
    part = ParameterShard.of(job, 0, 1, 1, CPU)
    before = part.params.clone()
    part.grad.fill_(1.0)
    part.apply(0)
    assert not torch.equal(part.params, before)
    with pytest.raises(
        UsageError, match=r"2 servers cannot share job .*optimizer Adafactor.*choose 1 server"
    ):
        check_divisible(job, 2)
    with pytest.raises(UsageError, match=r"3 servers cannot share .*Adafactor"):
        check_divisible(job, 3)
    check_divisible(job, 1)
    check_divisible(job_with("adam"), 3)

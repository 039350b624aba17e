"""Servers that keep the parameters, in virtual time: the same mathematics as all-reduce where it must be."""

from dataclasses import replace

import pytest
import torch
from torch import optim
from virtual_helpers import make_cluster, make_job, plain_model, random_model, with_gradients

ONE_WORKER = ["ps", "ssp:staleness=2", "async", "ps:backup=1", "async:damped=true"]
OPTIMIZERS = {
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: optim.Adam(parameters, lr=0.01),
}


def trained(spec: str, workers: int, *, model=random_model, optimizer="momentum", **changes):
    job = replace(make_job(model), optimizer=OPTIMIZERS[optimizer], schedule=lambda epoch: 1 / (1 + epoch))
    return with_gradients(job, make_cluster(workers, latency=0.01), strategy_name=spec, **changes)


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("spec", ONE_WORKER)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_and_a_server_are_plain_training_to_the_bit(spec: str, optimizer: str) -> None:
    _, plain = trained("all-reduce", 1, optimizer=optimizer, iterations=30)
    _, served = trained(spec, 1, optimizer=optimizer, iterations=30)
    assert same(plain.model, served.model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 3])
def test_the_synchronous_server_is_all_reduce(servers: int, optimizer: str) -> None:
    options = {"iterations": 20, "slow": {1: 3.0}, "batch_sizes": (8, 4, 2), "optimizer": optimizer}
    # Before a batch norm a bias has no gradient but what is rounded, and Adam takes that for one.
    options |= {"model": plain_model}
    _, reduced = trained("all-reduce", 3, **options)
    summary, served = trained("ps", 3, servers=servers, **options)
    for name, value in reduced.model.items():
        assert torch.allclose(served.model[name], value, rtol=0, atol=1e-6), name
    assert [totals.staleness for totals in summary.servers] == [{0: 60}] * servers


@pytest.mark.parametrize(
    ("one", "other"), [("ps", "ssp:staleness=0"), ("ssp:staleness=1000", "async"), ("ps", "ps:damped=true")]
)
@pytest.mark.parametrize("servers", [1, 2])
def test_forms_that_are_the_same_at_their_limits(one: str, other: str, servers: int) -> None:
    options = {"iterations": 20, "slow": {1: 3.0}, "servers": servers}
    (_, first), (_, second) = (trained(spec, 3, **options) for spec in (one, other))
    assert same(first.model, second.model)


def test_workers_that_do_not_wait_train_on_old_parameters() -> None:
    runs = {spec: trained(spec, 3, slow={2: 4.0}) for spec in ("ps", "ssp:staleness=1", "async")}
    waited = {spec: run.totals[0].seconds["wait"] for spec, (run, _) in runs.items()}
    assert waited["async"] < waited["ssp:staleness=1"] < waited["ps"]
    stale = {spec: max(run.servers[0].staleness) for spec, (run, _) in runs.items()}
    assert stale["ps"] == 0 < stale["ssp:staleness=1"] <= stale["async"]

"""Federated averaging in virtual time, against a loop in plain torch that does what the papers say."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim
from virtual_helpers import (
    SHAPE,
    Clouds,
    Host,
    JobShape,
    Layout,
    Link,
    StepBreakdown,
    StepTimes,
    make_cluster,
    make_job,
    plain_model,
    prepared_of,
    random_model,
    settings_of,
    time_only,
    with_gradients,
)

from command import run_paceline
from paceline.clusters.cluster import Cluster
from paceline.errors import UsageError
from paceline.jobs.data import TensorData
from paceline.jobs.job import Job
from paceline.jobs.partition import ClientBatch
from paceline.records.folder import RunFolder
from paceline.runtimes.config import write_config
from paceline.runtimes.live.launcher.resharding import reshard
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.replica import first_model
from paceline.strategies import build_strategy
from paceline.strategies.federated import FederatedAveraging, deal

MOMENTUM = partial(optim.SGD, lr=0.1, momentum=0.9)


def labelled_job(model=plain_model, optimizer=MOMENTUM) -> Job:
    clouds = Clouds(96, 1)
    data = TensorData(*clouds.take(torch.arange(96)))
    return replace(make_job(model), train=data, optimizer=optimizer)


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def trained(
    job: Job, workers: int, spec: str, epochs: int = 3, batch: int = 8, **changes
) -> dict[str, Tensor]:
    sizes = (batch,) * workers
    _, kept = with_gradients(
        job, make_cluster(workers), strategy_name=spec, batch_sizes=sizes, epochs=epochs, **changes
    )
    return kept.model


def by_hand(job: Job, spec: str, epochs: int, batch: int = 8) -> dict[str, Tensor]:
    """FedAvg with FedAvgM's server and FedProx's clients, one client after the other, as the papers have it."""
    strategy: FederatedAveraging = build_strategy(spec)
    settings = settings_of(1, strategy=spec, batch_sizes=(batch,), epochs=epochs)
    clients = prepared_of(settings, job).clients
    world = first_model(job, settings.seed, torch.device("cpu"))
    velocity = [torch.zeros_like(value) for value in world.parameters()]
    seen = number = 0
    while seen < epochs * clients.samples:
        (drawn,) = deal(clients, strategy.sample, strategy.dropout, 1, number)
        models, sizes = [], []
        for client, drops_out in drawn:
            model = deepcopy(world)
            optimizer = job.optimizer(model.parameters())
            for epoch in range(number * strategy.epochs, (number + 1) * strategy.epochs):
                for place in range(clients.batches(client, 0)):
                    inputs, targets = job.train.take(clients.indices(ClientBatch(client, epoch, place), 0))
                    loss = job.loss(model(inputs), targets)
                    pairs = zip(model.parameters(), world.parameters(), strict=True)
                    loss += (
                        strategy.proximal / 2 * sum(((own - all_.detach()) ** 2).sum() for own, all_ in pairs)
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            if not drops_out:
                models.append(dict(model.named_parameters()))
                sizes.append(clients.sizes[client])
        with torch.no_grad():
            for place, (name, value) in enumerate(world.named_parameters()):
                mean = sum(size * one[name] for size, one in zip(sizes, models, strict=True)) / sum(sizes)
                velocity[place] = strategy.momentum * velocity[place] + (value - mean)
                value -= strategy.server_lr * velocity[place]
        seen += sum(sizes) * strategy.epochs
        number += 1
    return {name: value.detach() for name, value in world.named_parameters()}


FULL = "fedavg:clients=12,sample=6,epochs=2,alpha=0.3,uneven=0.8,momentum=0.6,server_lr=0.7,proximal=0.3,dropout=0.6"


@pytest.mark.parametrize(
    "spec",
    [
        "fedavg:clients=6,sample=3",
        "fedavg:clients=6,sample=3,uneven=0.8,alpha=0.5",
        "fedavg:clients=6,sample=3,momentum=0.8",
        "fedavg:clients=6,sample=3,epochs=2,proximal=0.5",
        FULL,
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_is_the_papers_loop_however_many_workers_stand_for_the_clients(spec: str, workers: int) -> None:
    job = labelled_job()
    assert furthest(trained(job, workers, spec), by_hand(job, spec, 3)) < 2e-6


def test_a_worker_all_of_whose_clients_drop_out_changes_nothing_and_one_client_always_stays() -> None:
    """The comparison above has such rounds; without them it would not show that they are right."""
    clients = prepared_of(settings_of(3, strategy=FULL, epochs=1), labelled_job()).clients
    dealt = [deal(clients, 6, 0.6, 3, number) for number in range(20)]
    lost = [all(one.drops_out for one in mine) for workers in dealt for mine in workers]
    assert any(lost)
    for number in range(200):
        (drawn,) = deal(clients, 2, 0.95, 1, number)
        assert not all(one.drops_out for one in drawn)


@pytest.mark.parametrize("model", [plain_model, random_model])
@pytest.mark.parametrize("spec", ["fedavg", "fedavg:epochs=3"])
def test_one_client_is_plain_training_bit_for_bit(spec: str, model) -> None:
    job = make_job(model)
    alone = trained(job, 1, spec, batch=20)
    assert furthest(alone, trained(job, 1, "all-reduce", batch=20)) == 0


def test_one_full_batch_of_every_client_is_a_step_of_all_reduce() -> None:
    job = make_job()
    assert furthest(trained(job, 4, "fedavg", batch=24), trained(job, 4, "all-reduce", batch=24)) < 1e-6


def test_statistics_of_batch_norm_are_the_clients_mean() -> None:
    """If each worker kept its own, the model would depend on which clients it stood for before."""
    job = labelled_job(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)))
    spec = "fedavg:clients=6,sample=3,uneven=0.5,dropout=0.3"
    one, three = (trained(job, workers, spec) for workers in (1, 3))
    one.pop("1.num_batches_tracked"), three.pop("1.num_batches_tracked")  # each worker counts its own
    assert furthest(one, three) < 2e-6


@pytest.mark.parametrize(
    "spec", ["fedavg:clients=6,sample=4", "fedavg:clients=6,sample=4,momentum=0.8,dropout=0.4"]
)
def test_a_codec_that_leaves_nothing_out_changes_nothing(spec: str) -> None:
    job = labelled_job()
    plain = trained(job, 2, spec)
    assert furthest(trained(job, 2, spec, codec="top-k:ratio=1"), plain) < 1e-6
    assert 0 < furthest(trained(job, 2, spec, codec="int8"), plain) < 0.05


def test_the_draw_is_without_replacement_and_work_is_dealt_evenly() -> None:
    settings = settings_of(4, strategy="fedavg:clients=40,sample=20,uneven=1.0", epochs=1)
    clients = prepared_of(settings, replace(SHAPE, train_samples=4000)).clients
    rounds = [deal(clients, 20, 0.0, 4, number) for number in range(30)]
    for dealt in rounds:
        drawn = [one.client for mine in dealt for one in mine]
        assert len(set(drawn)) == 20
        loads = [sum(clients.sizes[one.client] for one in mine) for mine in dealt]
        largest = max(clients.sizes[client] for client in drawn)
        assert max(loads) <= max(largest, 4 / 3 * sum(loads) / 4), "further from even than LPT can be"
    assert {one.client for dealt in rounds for mine in dealt for one in mine} == set(range(40))
    assert rounds[0] != rounds[1]


def test_a_lost_update_takes_its_time_and_counts_no_samples() -> None:
    cluster = make_cluster(2)
    runs = [
        time_only(cluster, strategy_name=f"fedavg:clients=40,sample=4,dropout={dropout}", epochs=4)[0]
        for dropout in (0.0, 0.5)
    ]
    assert runs[0].samples == 4 * SHAPE.train_samples
    assert 1.5 < runs[1].seconds / runs[0].seconds < 2.7
    assert runs[1].samples / runs[0].samples == pytest.approx(runs[1].seconds / runs[0].seconds, rel=0.1)


def test_eight_devices_take_the_time_of_the_worked_case() -> None:
    """204,800 samples, 10 local epochs in batches of 32, 4 s a batch, 7 s for the model each way: 32,014 s a round.

    Rank 0's host is the master too, with a link that is never the limit. Models travel in segments, so that the first
    part of the mean is on its way back before the last part of the models has arrived: between 7 s and 14 s.
    """
    slow, fast = Link(bandwidth=10e6, latency=0.0), Link(bandwidth=1e15, latency=0.0)
    hosts = [Host(name=f"h{one}", link=slow if one else fast) for one in range(8)]
    cluster = Cluster.of(hosts, times=StepTimes(step=StepBreakdown(forward=1.0, backward=3.0)))
    shape = JobShape(name="devices", layout=Layout.of_vectors(17_500_000), train_samples=204_800)
    summary, _ = time_only(
        cluster,
        shape,
        detailed=False,
        strategy_name="fedavg:epochs=10",
        collective="one-to-all",
        batch_sizes=(32,) * 8,
        epochs=10,
    )
    for total in summary.totals:
        assert total.steps == 8000
        assert total.in_steps.compute + total.in_warm_up.compute == pytest.approx(32_000)
        assert 7 < total.in_steps.communicate < 7.5, "of the round; before it, all are sent the initial model"


def test_a_thousand_workers_stand_for_a_thousand_clients() -> None:
    """Each has less than a mini-batch, which all-reduce would refuse."""
    spec = "fedavg:clients=1000,sample=1000,uneven=0.5"
    shape = replace(SHAPE, train_samples=5000)
    cluster = make_cluster(1000)
    summary, _ = time_only(cluster, shape, detailed=False, strategy_name=spec, epochs=2)
    assert summary.epochs == 2
    assert {total.steps for total in summary.totals} <= set(range(2, 20))
    assert summary.samples == 10_000


@pytest.mark.parametrize(
    ("spec", "workers", "sentence"),
    [
        ("fedavg:sample=3,clients=2", 1, "sample=3 of clients=2 cannot be drawn.*at least clients=3"),
        ("fedavg:sample=3", 1, "sample=3 of clients=0"),
        ("fedavg:clients=8,sample=3", 4, "work for at most 3 workers, and this run has 4; use fewer workers"),
        ("fedavg:dropout=1", 1, "dropout=1 is out of range; it must be at least 0 and less than 1"),
        ("fedavg:alpha=0", 1, "alpha=0 is out of range; it must be more than 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(spec: str, workers: int, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_settings(settings_of(workers, strategy=spec))


def test_a_codec_with_momentum_of_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match="send differences of parameters"):
        check_settings(settings_of(2, strategy="fedavg", codec="dgc:ratio=0.1"))


def test_another_number_of_workers_is_refused_for_it_would_change_the_clients_batches(tmp_path) -> None:
    write_config(RunFolder(tmp_path), settings_of(2, strategy="fedavg:clients=6"), "live", {})
    with pytest.raises(UsageError, match=r"divides its data among clients.*resume it with its 2 workers"):
        reshard(RunFolder(tmp_path), 3, trust=False)


def test_labels_are_only_needed_where_alpha_is_given(tmp_path) -> None:
    (tmp_path / "job.py").write_text(
        "import torch\nfrom torch import nn\nimport paceline\n\n"
        "class Points(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 64\n\n"
        "    def __getitem__(self, index):\n        return torch.randn(4), index % 2\n\n"
        "def points():\n    return paceline.Job(name='points', model=lambda: nn.Linear(4, 2), train=Points(),\n"
        "        loss=nn.functional.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))\n"
    )
    words = ("simulate", "--job", "job.py:points", "--epochs", "1", "--batch-size", "4", "--strategy")
    run_paceline(*words, "fedavg:clients=8,uneven=0.5", cwd=tmp_path)
    refused = run_paceline(*words, "fedavg:clients=8,alpha=0.1", cwd=tmp_path, check=2)
    assert "has no 'targets'" in refused.stderr

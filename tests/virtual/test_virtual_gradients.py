"""With gradients: the mathematics is that of plain training, whatever the clock says."""

import pytest
import torch
from torch import Tensor, nn
from virtual_helpers import (
    Cadence,
    JobShape,
    make_cluster,
    make_job,
    random_model,
    sgd,
    time_only,
    with_gradients,
)

from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.runtimes.replica import Replica


def train_plainly(job: Job, batch: int, steps: int, seed: int = 1) -> dict[str, Tensor]:
    """A loop as anybody would write it, with the first weights and the random stream of worker 0."""
    shards = Shards(len(job.train), (batch,), seed)
    start = Replica(job, shards, 0, seed, torch.device("cpu"))
    model = job.model()
    model.load_state_dict(start.model.state_dict())
    optimizer = sgd(model.parameters())
    outside = torch.get_rng_state()
    torch.set_rng_state(start.rng["torch"])
    for step in range(steps):
        inputs, targets = job.train.take(shards.indices(0, step))
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        optimizer.step()
    torch.set_rng_state(outside)
    return model.state_dict()


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


@pytest.mark.parametrize("model", [random_model, None])
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3", "local-sgd:period=5s"])
def test_one_worker_is_plain_training_bit_for_bit(strategy: str, model) -> None:
    job = make_job(model) if model else make_job()
    summary, kept = with_gradients(job, make_cluster(1), batch_sizes=(20,), epochs=3, strategy_name=strategy)
    assert summary.totals[0].steps >= 15
    assert furthest(kept.model, train_plainly(job, 20, summary.totals[0].steps)) == 0


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (16, 8, 5, 3), (20, 12)])
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=1"])
def test_several_workers_are_one_worker_with_all_their_samples(strategy: str, sizes: tuple[int, ...]) -> None:
    job = make_job(train=100)  # the last batch of an epoch holds 4 samples: some workers get none
    _, kept = with_gradients(
        job, make_cluster(len(sizes)), batch_sizes=sizes, epochs=4, slow={1: 2.0}, strategy_name=strategy
    )
    assert furthest(kept.model, train_plainly(job, 32, 16)) < 1e-6


def test_local_sgd_by_hand() -> None:
    """Two workers apart for two steps, then the average weighted by samples."""
    job = make_job()
    _, kept = with_gradients(
        job, make_cluster(2), batch_sizes=(12, 4), iterations=2, strategy_name="local-sgd:period=2"
    )
    shards = Shards(len(job.train), (12, 4), 1)
    apart = []
    for rank in range(2):
        replica = Replica(job, shards, rank, 1, torch.device("cpu"))
        for step in range(2):
            replica.gradient(step, 1.0)
            replica.apply(0.0)
        apart.append(replica.flat.params)
    expected = (apart[0] * 24 + apart[1] * 8) / 32
    assert torch.equal(nn.utils.parameters_to_vector(list(kept.model.values())), expected)


def test_local_sgd_by_seconds_weighs_by_samples_and_all_end_alike() -> None:
    job = make_job()
    summary, kept = with_gradients(
        job,
        make_cluster(3),
        iterations=24,
        slow={2: 3.0},
        evaluate=Cadence(8, "steps"),
        strategy_name="local-sgd:period=12s",
    )
    steps = [total.steps for total in summary.totals]
    assert steps[0] == steps[1] > steps[2]
    assert [row.seconds for row in kept.rows] == sorted({row.seconds for row in kept.rows})
    assert kept.rows[-1].step == summary.steps >= 24


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=4"])
def test_evaluation_is_that_of_the_exported_model(strategy: str) -> None:
    job = make_job(random_model)
    summary, kept = with_gradients(
        job, make_cluster(3), epochs=4, evaluate=Cadence(1), checkpoint=Cadence(2), strategy_name=strategy
    )
    assert [row.epoch for row in kept.rows] == [1, 2, 3, 4]
    model = job.model().eval()
    model.load_state_dict(kept.model)
    inputs, targets = job.test.take(torch.arange(50))
    right = (model(inputs).argmax(1) == targets).double().mean().item()
    assert kept.rows[-1].metrics["accuracy"] == pytest.approx(right)
    assert kept.rows[-1].test_loss == pytest.approx(job.loss(model(inputs), targets).item(), rel=1e-5)
    assert summary.final["accuracy"] == pytest.approx(right)
    # 50 test samples are one batch, which one worker scores in forward's time for 8; the others wait.
    assert [totals.seconds["evaluate"] for totals in summary.totals] == [0, 0, pytest.approx(4 * 50 / 8)]


def test_a_run_stops_at_its_target() -> None:
    summary, kept = with_gradients(
        make_job(), make_cluster(2), epochs=50, evaluate=Cadence(1), target_accuracy=0.9
    )
    assert summary.ending == "target"
    assert summary.epochs < 50
    assert summary.final["accuracy"] >= 0.9
    assert summary.target_seconds == kept.rows[-1].seconds
    assert kept.model


def test_same_seed_same_bits() -> None:
    runs = [
        with_gradients(make_job(random_model), make_cluster(3), epochs=2, evaluate=Cadence(1), seed=seed)
        for seed in (5, 5, 6)
    ]
    (one, first), (two, second), (_, third) = runs
    assert one == two
    assert furthest(first.model, second.model) == 0
    assert furthest(first.model, third.model) > 0
    assert first.records == second.records


def test_the_process_keeps_its_own_random_stream() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with_gradients(make_job(random_model), make_cluster(2))
    assert torch.equal(torch.rand(4), expected)


def test_time_is_the_same_with_and_without_gradients() -> None:
    job, cluster = make_job(random_model), make_cluster(4, per_host=2)
    for strategy in ("all-reduce", "local-sgd:period=3", "local-sgd:period=9s"):
        true, _ = with_gradients(job, cluster, iterations=20, slow={1: 1.7}, strategy_name=strategy)
        bare, _ = time_only(cluster, JobShape.of(job), iterations=20, slow={1: 1.7}, strategy_name=strategy)
        assert true == bare


def test_averaged_buffers_are_weighted_by_samples() -> None:
    """After one step, the mean of the workers' batch means is that of the whole batch only if it is weighted."""
    job, name = make_job(random_model), "1.running_mean"
    _, uneven = with_gradients(job, make_cluster(2), iterations=1, batch_sizes=(24, 8))
    _, whole = with_gradients(job, make_cluster(1), iterations=1, batch_sizes=(32,))
    assert torch.allclose(uneven.model[name], whole.model[name], atol=1e-6)


def test_rank_0s_buffers_are_everybodys_at_every_step() -> None:
    job, cluster = make_job(random_model), make_cluster(2)
    average, kept = with_gradients(job, cluster, iterations=4)
    rank0, shared = with_gradients(job, cluster, iterations=4, buffers="rank0")
    assert furthest(kept.model, shared.model) > 0
    # 16 floats of statistics more in each step, from rank 0 to rank 1, at 1 MB/s; the mean at the end of the other
    # run travels with a weight.
    assert rank0.seconds - average.seconds == pytest.approx(4 * 64e-6 - 4e-6)
    assert rank0.totals[0].sent - average.totals[0].sent == 4 * 64 - 4


def test_rank_0s_buffers_are_those_that_are_exported() -> None:
    """After one step they are those of rank 0 trained alone on its first mini-batch."""
    job, name = make_job(random_model), "1.running_mean"
    _, alone = with_gradients(job, make_cluster(1), iterations=1, batch_sizes=(8,))
    _, rank0 = with_gradients(job, make_cluster(2), iterations=1, batch_sizes=(8, 8), buffers="rank0")
    _, average = with_gradients(job, make_cluster(2), iterations=1, batch_sizes=(8, 8))
    assert torch.equal(rank0.model[name], alone.model[name])
    assert not torch.equal(average.model[name], alone.model[name])


def test_sharing_buffers_adds_no_record() -> None:
    job, cluster = make_job(random_model), make_cluster(2)
    _, kept = with_gradients(job, cluster, iterations=4)
    _, shared = with_gradients(job, cluster, iterations=4, buffers="rank0")
    assert len(shared.records[1]) == len(kept.records[1])

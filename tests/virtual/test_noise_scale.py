"""The gradient noise scale: right where it is known, and measured on the gradients that a run has."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn, optim
from virtual_helpers import make_cluster, make_job, with_gradients

from paceline import TensorData
from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.reports.summary import summary_text
from paceline.runtimes.noise_scale import DECAY, EVERY, NoiseMeter
from paceline.runtimes.settings import Cadence

DIMENSIONS = 400


class Point(nn.Module):
    """Half the squared distance to a sample, so that its gradient is the difference."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(DIMENSIONS))

    def forward(self, samples: Tensor) -> Tensor:
        return self.at - samples


def quadratic(samples: int = 20_000, **changes) -> Job:
    """Samples around a centre at distance 4 with variance 1 in each direction: 400 / 16 = 25."""
    made = torch.Generator().manual_seed(7)
    inputs = torch.randn(samples, DIMENSIONS, generator=made) + 4 / DIMENSIONS**0.5
    return Job(
        name="quadratic",
        model=Point,
        loss=lambda differences, _: differences.square().sum(1).mean() / 2,
        train=TensorData(inputs, torch.zeros(samples, dtype=torch.int64)),
        # The gradient stays what it is.
        optimizer=lambda parameters: optim.SGD(parameters, lr=1e-12),
        **changes,
    )


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (32, 12, 4)])
def test_the_scale_of_a_known_problem_is_found(sizes: tuple[int, ...]) -> None:
    """Within a few per cent, over 80 measurements; shares that differ must not shift it."""
    many = 80 * EVERY
    summary, _ = with_gradients(quadratic(), make_cluster(len(sizes)), batch_sizes=sizes, iterations=many)
    assert summary.noise_scale is not None
    assert summary.noise_scale.last == pytest.approx(25, rel=0.06)
    assert summary.noise_scale.low <= summary.noise_scale.last <= summary.noise_scale.high
    assert summary.noise_scale.batch == sum(sizes)


def test_one_worker_finds_it_by_its_mini_batches() -> None:
    job = quadratic(accumulate=4)
    summary, _ = with_gradients(job, make_cluster(1), batch_sizes=(8,), iterations=80 * EVERY)
    assert summary.noise_scale is not None
    assert summary.noise_scale.last == pytest.approx(25, rel=0.08)


def gradient_of(job: Job, model: nn.Module, indices: Tensor) -> Tensor:
    inputs, targets = job.train.take(indices)
    assert job.loss is not None
    return torch.cat(
        [
            one.flatten()
            for one in torch.autograd.grad(job.loss(model(inputs), targets), [*model.parameters()])
        ]
    )


def test_what_is_averaged_is_the_papers_estimate_of_each_measured_step() -> None:
    """By hand, from the workers' gradients; an epoch's last batch of 16 samples instead of 40 is left out."""
    frozen = lambda parameters: optim.SGD(parameters, lr=1e-12)  # noqa: E731
    job = replace(make_job(train=96), optimizer=frozen)
    sizes, steps = (8, 8, 8, 8, 8), 12 * EVERY
    summary, kept = with_gradients(
        job, make_cluster(5), batch_sizes=sizes, iterations=steps, evaluate=Cadence(steps, "steps")
    )
    shards, noises, signals = Shards(96, sizes, 1), [], []
    torch.manual_seed(1)
    model = job.model()
    for step in range(0, steps, EVERY):
        if (step + 1) % shards.steps_per_epoch == 0:
            continue
        own = [gradient_of(job, model, shards.indices(rank, step)) for rank in range(5)]
        small, big = sum(one.dot(one) for one in own) / 5, (sum(own) / 5).square().sum()
        signals.append((40 * big - 8 * small) / (40 - 8))
        noises.append((small - big) / (1 / 8 - 1 / 40))
    assert 8 <= len(signals) < steps / EVERY, "some of them ended an epoch"
    weights = [DECAY**age for age in reversed(range(len(signals)))]
    noise, signal = (
        sum(w * one for w, one in zip(weights, these, strict=True)) for these in (noises, signals)
    )
    assert summary.noise_scale is not None
    assert summary.noise_scale.last == pytest.approx(float(noise / signal), rel=1e-3)
    assert kept.rows[-1].noise_scale == summary.noise_scale.last
    assert "this run's was 40" in summary_text(summary)


@pytest.mark.parametrize(
    ("workers", "accumulate", "changes"),
    [
        (1, 1, {}),
        (2, 1, {"strategy_name": "local-sgd"}),
        (2, 1, {"codec": "int8"}),
        (2, 2, {"codec": "int8"}),
    ],
)
def test_without_exact_gradients_of_two_batch_sizes_nothing_is_told(workers, accumulate, changes) -> None:
    """An encoded mean is not the mean of the workers' gradients: its norm has the codec's error in it."""
    job = replace(make_job(), accumulate=accumulate)
    summary, _ = with_gradients(job, make_cluster(workers), iterations=10 * EVERY, **changes)
    assert summary.noise_scale is None
    assert "noise scale" not in summary_text(summary)


def test_a_measurement_that_is_not_finite_spoils_no_other() -> None:
    meter, grad = NoiseMeter(Shards(64, (8, 8), 1), 0, 1), torch.ones(4)
    for _ in range(8):
        meter.compare_workers(2 * 6.0, grad)
    known = meter.value
    meter.compare_workers(float("inf"), grad)
    meter.compare_workers(float("nan"), grad)
    assert meter.value == known == 16.0
    again = NoiseMeter(Shards(64, (8, 8), 1), 0, 1)
    again.load(meter.state())
    assert again.value == known
    assert again.summary() == meter.summary()

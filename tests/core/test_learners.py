"""Several learners of a worker: their gradients are those of as many models, however they are computed."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import conv2d, cross_entropy

from paceline.errors import UsageError
from paceline.jobs.data import as_data
from paceline.jobs.job import Job
from paceline.jobs.optimizers import Sgd
from paceline.jobs.sharding import Shards
from paceline.runtimes.grouped_convolution import convolution, convolution_backward
from paceline.runtimes.learners import NotTogether, find_count
from paceline.runtimes.replica import Replica
from paceline.strategies.base import LearnerPlan

CPU = torch.device("cpu")
WAYS = ("in-turn", "together")


def pictures(samples: int = 50) -> Any:
    noise = torch.Generator().manual_seed(7)
    images = torch.randn(samples, 2, 9, 9, generator=noise)
    labels = torch.randint(0, 5, (samples,), generator=noise)
    return as_data(list(zip(images, labels, strict=True)), "data", None)[0]


def make_job(model: Callable[[], nn.Module], **changes: Any) -> Job:
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": Sgd(lr=0.1),
        "train": pictures(),
        **changes,
    }
    return Job(name="small", model=model, **settings)


def make_replica(job: Job, learners: int, way: Any, batch: int = 4, seed: int = 1) -> Replica:
    shards = Shards(len(job.train), (batch * learners * job.accumulate,), seed)
    replica = Replica(job, shards, 0, seed, CPU, plan=LearnerPlan(count=learners, compute=way))
    noise = torch.randn(replica.flat.params.shape, generator=torch.Generator().manual_seed(3))
    replica.flat.params.add_(0.1 * noise)  # learners that have trained apart
    return replica


def with_batch_norm() -> nn.Module:
    layers = [
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
    ]
    return nn.Sequential(*layers)


def dense(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(162, 8), nn.ReLU(), *more, nn.Linear(8, 5))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_learners_computed_together_are_learners_computed_in_turn(accumulate):
    """Gradients, losses, and each learner's own batch-norm statistics and counters, over several steps."""
    job = make_job(with_batch_norm, accumulate=accumulate, clip_norm=0.5, train=pictures(80))
    one, other = (make_replica(job, 3, way) for way in WAYS)
    for step in range(3):
        losses = [replica.gradient(step, 1.0) for replica in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        torch.testing.assert_close(one.flat.grad, other.flat.grad, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.buffers, other.buffers, rtol=1e-5, atol=1e-5)
        for replica in (one, other):
            replica.apply(0.0)
    torch.testing.assert_close(one.flat.params, other.flat.params, rtol=1e-5, atol=1e-5)
    counters = other.named_buffers.named["1.num_batches_tracked"]
    assert counters.tolist() == [3 * accumulate] * 3
    assert not torch.equal(other.buffers[0], other.buffers[1])


class TwoBranches(nn.Module):
    """Both biases have the same gradient, and that of the offset is one number for all its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.offset = nn.Linear(162, 5), nn.Linear(162, 5), nn.Parameter(torch.zeros(3))

    def forward(self, pictures: Tensor) -> Tensor:
        inputs = pictures.flatten(1)
        return self.one(inputs) + self.other(inputs) + self.offset.sum()


def test_gradients_that_are_one_tensor_are_weighed_once():
    """A model's branches that are added up, and two mini-batches, each of which is half of the gradient."""
    job = make_job(TwoBranches, accumulate=2)
    one, other = (make_replica(job, 2, way) for way in WAYS)
    for replica in (one, other):
        replica.gradient(0, 1.0)
    torch.testing.assert_close(one.flat.grad, other.flat.grad, rtol=1e-5, atol=1e-5)


class Shared(nn.Module):
    """A module that has two names, and a weight that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(162, 5), self.norm)
        self.mixed, self.again = nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.mixed.weight

    def forward(self, pictures: Tensor) -> Tensor:
        return self.again(self.mixed(self.body(pictures)))


def test_what_a_model_shares_is_shared_by_each_learner():
    """And the trace puts it back: a model whose module has two names can be evaluated afterwards."""
    job = make_job(Shared)
    one, other = (make_replica(job, 2, way) for way in WAYS)
    memory = [tensor.data_ptr() for tensor in (*other.model.parameters(), *other.model.buffers())]
    for replica in (one, other):
        replica.gradient(0, 1.0)
    torch.testing.assert_close(one.flat.grad, other.flat.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.buffers, other.buffers, rtol=1e-5, atol=1e-5)
    assert memory == [tensor.data_ptr() for tensor in (*other.model.parameters(), *other.model.buffers())]


@pytest.mark.parametrize("way", WAYS)
def test_each_learner_is_a_model_of_its_own(way):
    """Gradients, clipping and momentum of a row are those of a plain model with that row's batches."""
    job = make_job(dense, clip_norm=0.3)
    replica = make_replica(job, 2, way)
    alone = job.model()
    row = replica.flat.params[1].clone()
    nn.utils.vector_to_parameters(row, alone.parameters())
    optimizer = job.optimizer(alone.parameters())
    for step in range(2):
        inputs, targets = job.train.take(replica.shards.indices(0, step)[4:])
        optimizer.zero_grad()
        cross_entropy(alone(inputs), targets).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.3)
        optimizer.step()
        replica.gradient(step, 1.0)
        replica.apply(0.0)
    own = nn.utils.parameters_to_vector(alone.parameters())
    torch.testing.assert_close(replica.flat.params[1], own, rtol=1e-5, atol=1e-6)


def test_an_epoch_that_ends_unevenly_gives_some_learners_less():
    """50 samples: six steps of 2 x 4, and one of 2, which are one a learner; of 3 x 4, one of 2, where one has none."""
    job = make_job(dense)
    two, three = (make_replica(job, learners, "together") for learners in (2, 3))
    assert [len(one.indices) for one in two.requests(6)] == [1, 1]
    assert [len(one.indices) for one in three.requests(4)] == [1, 1]
    three.gradient(4, 1.0)
    assert three.flat.grad.abs().sum(1).tolist()[0] == 0
    assert (three.flat.grad.abs().sum(1)[1:] > 0).all()


def test_random_numbers_of_learners_differ():
    """If this failed, dropout would drop the same units of all learners."""
    job = make_job(lambda: dense(nn.Dropout(0.5)))
    replica = make_replica(job, 4, "together")
    replica.flat.params.copy_(replica.flat.params[0].clone())
    sample = replica.batches(0)
    same = next(sample)
    replica.batches = lambda _: iter([same] * 4)
    first = _random_gradients(replica)
    assert len({tuple(row.tolist()) for row in first}) == 4
    assert not torch.equal(first, _random_gradients(replica)), "a trace draws anew at every step"


def _random_gradients(replica: Replica) -> Tensor:
    replica.gradient(0, 1.0)
    return replica.flat.grad.clone()


class Looks(nn.Module):
    def forward(self, units: Tensor) -> Tensor:
        return units if units.sum() > 0 else -units


class Draws(nn.Module):
    def forward(self, units: Tensor) -> Tensor:
        return units if random.random() < 0.5 else units * 0.5


class Counts(nn.Module):
    calls = 0

    def forward(self, units: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return units / self.calls


@pytest.mark.parametrize(
    ("layer", "why"), [(Looks, "data-dependent"), (Draws, "Python's"), (Counts, "attributes")]
)
def test_what_a_trace_would_not_repeat_is_not_computed_together(layer, why):
    replica = make_replica(make_job(lambda: dense(layer())), 2, "together")
    streams = random.getstate()
    with pytest.raises(NotTogether, match=rf"2 learners of job 'small' .*{why}.*; set compute=in-turn"):
        replica.gradient(0, 1.0)
    assert random.getstate() == streams


def test_an_optimizer_that_tells_parameters_apart_is_refused():
    job = make_job(dense, optimizer=lambda parameters: optim.Adafactor(parameters))
    with pytest.raises(
        UsageError, match=r"several learners cannot share the optimizer Adafactor, .*learners=1"
    ):
        make_replica(job, 2, "in-turn")


def test_a_saved_replica_has_all_its_learners():
    job = make_job(with_batch_norm)
    one, other = make_replica(job, 2, "in-turn"), make_replica(job, 2, "in-turn", seed=2)
    for step in range(2):
        one.gradient(step, 1.0)
        one.apply(0.0)
    other.load(one.state())
    assert torch.equal(one.flat.params, other.flat.params)
    assert torch.equal(one.buffers, other.buffers)
    assert torch.equal(one.named_buffers.named["1.num_batches_tracked"], torch.tensor([2, 2]))
    assert torch.equal(other.named_buffers.named["1.num_batches_tracked"], torch.tensor([2, 2]))


@pytest.mark.parametrize(("stride", "padding", "size"), [(1, 0, (5, 5)), (2, 1, (3, 3)), (3, 2, (4, 2))])
def test_a_grouped_convolution_by_matrix_products_is_torchs(stride, padding, size):
    image = torch.randn(3, 4 * 2, 11, 10, requires_grad=True)
    weight = torch.randn(4 * 3, 2, *size, requires_grad=True)
    options = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 4)
    expected = conv2d(image, weight, stride=stride, padding=padding, groups=4)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    with torch.no_grad():
        torch.testing.assert_close(convolution(image, weight, None, *options), expected)
        found = convolution_backward(grad, image, weight, [12], *options, [True, True, True])
    for one, other in zip(found, (image.grad, weight.grad, grad.sum((0, 2, 3))), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_as_many_learners_are_taken_as_are_worth_it_to_every_worker():
    """Twice the learners must raise the throughput by a sixth; one that does not may be followed by one that does."""
    rates = {1: [100, 100], 2: [115, 140], 4: [150, 160], 8: [165, 250], 16: [170, 260], 32: [175, 270]}
    assert find_count(lambda count: rates[count][:1], 1000) == 4, "8 raise it by 10 % only"
    assert find_count(lambda count: rates[count][1:], 1000) == 8
    assert find_count(rates.__getitem__, 1000) == 4, "all workers train as many"
    assert find_count(lambda count: rates[count][1:], 7) == 2, "there is data for 4, which are worth less"
    assert find_count(lambda count: [float(count)], 10**6) == 64

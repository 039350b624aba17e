"""If these fail, an update is not the mean of what has come, or two runs of the same arrivals differ."""

from itertools import permutations

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from paceline.records.servers import AppliedGradient
from paceline.strategies.parameter_server import GradientBuffer

LENGTH = 6

weights = st.integers(1, 256)
shares = st.integers(0, 5).map(lambda staleness: 1 / (1 + staleness))
piles = st.lists(st.tuples(weights, shares, st.integers(0, 2**31)), min_size=1, max_size=5)


def gradient(seed: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed))


def credit(worker: int, clock: int = 0) -> AppliedGradient:
    return AppliedGradient(worker, clock, version=0, staleness=0, samples=1)


def mean_of(gathered: GradientBuffer) -> Tensor:
    out = torch.full((LENGTH,), torch.nan)
    _, used = gathered.reduce(out=out)
    return out * used


def gather(given_pending, order=None) -> GradientBuffer:
    gathered = GradientBuffer()
    for worker in order or range(len(given_pending)):
        weight, share, seed = given_pending[worker]
        gathered.hold(gradient(seed), credit(worker), weight, share)
    return gathered


@given(piles)
def test_the_mean_is_the_weighted_mean_of_the_shares(given_pending):
    total = sum(weight for weight, _, _ in given_pending)
    expected = sum(weight * share * gradient(seed).double() for weight, share, seed in given_pending) / total
    assert torch.allclose(mean_of(gather(given_pending)).double(), expected, atol=1e-5)


@given(piles)
def test_who_came_first_changes_no_bit(given_pending):
    orders = list(permutations(range(len(given_pending))))[:12]
    first, *others = [mean_of(gather(given_pending, order)) for order in orders]
    assert all(torch.equal(first, other) for other in others)


@given(weights, st.integers(0, 2**31), st.booleans())
def test_one_gradient_alone_is_itself_to_the_bit(weight, seed, copied):
    gathered = GradientBuffer()
    (gathered.accumulate if copied else gathered.hold)(gradient(seed), credit(3), weight, 1.0)
    assert torch.equal(mean_of(gathered), gradient(seed))


def test_a_damped_gradient_counts_in_full_and_makes_the_step_smaller():
    """It is the rate that shrinks: Adam would take a smaller gradient for the same step."""
    gathered, out = GradientBuffer(), torch.empty(LENGTH)
    gathered.hold(torch.ones(LENGTH), credit(0), 32, 1 / 4)
    assert gathered.reduce(out=out)[1] == 0.25
    assert torch.equal(out, torch.ones(LENGTH))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 64), shares), min_size=1, max_size=20))
@example([(0, 0, 1.0), (0, 0, 1.0)])  # an epoch's last batch may have no samples for a worker
def test_several_gradients_of_a_worker_weigh_as_if_each_were_kept(arrivals):
    gathered, expected, total = GradientBuffer(), torch.zeros(LENGTH, dtype=torch.float64), 0
    for clock, (worker, weight, share) in enumerate(arrivals):
        gathered.accumulate(gradient(clock), credit(worker, clock), weight, share)
        expected += weight * share * gradient(clock).double()
        total += weight
    assert torch.allclose(mean_of(gathered).double(), expected / (total or 1), atol=1e-5)


def test_only_the_order_of_a_workers_own_gradients_counts():
    own = {worker: [(worker, clock) for clock in range(4)] for worker in range(3)}
    means = []
    for first, second, third in permutations(range(3)):
        gathered = GradientBuffer()
        for round_ in zip(own[first], own[second], own[third], strict=True):
            for worker, clock in round_:
                gathered.accumulate(
                    gradient(10 * worker + clock), credit(worker, clock), 7 + worker, 1 / (1 + clock)
                )
        means.append(mean_of(gathered))
    assert all(torch.equal(means[0], other) for other in means)


def test_memory_is_one_vector_a_worker_however_long_the_update_is_put_off():
    gathered = GradientBuffer()
    for clock in range(50):
        gathered.accumulate(gradient(clock), credit(clock % 2, clock), 1, 1.0)
    assert sum(grad.numel() for grad, _ in gathered._pending.values()) == 2 * LENGTH


def test_a_copy_is_taken_where_a_worker_goes_on_before_the_update():
    gathered, grad = GradientBuffer(), torch.ones(LENGTH)
    gathered.accumulate(grad, credit(0), 1, 1.0)
    grad.fill_(9)
    assert torch.equal(mean_of(gathered), torch.ones(LENGTH))


def test_the_mean_names_everybody_in_order_of_arrival_and_forgets_them():
    gathered, out = GradientBuffer(), torch.empty(LENGTH)
    for worker, clock in ((1, 0), (0, 0), (1, 1)):
        gathered.accumulate(gradient(clock), credit(worker, clock), 1, 1.0)
    assert 1 in gathered
    assert [(one.worker, one.clock) for one in gathered.reduce(out=out)[0]] == [(1, 0), (0, 0), (1, 1)]
    assert not gathered
    assert 1 not in gathered
    gathered.hold(torch.ones(LENGTH), credit(2), 3, 1.0)
    assert torch.equal(mean_of(gathered), torch.ones(LENGTH)), (
        "nothing of the last update is left in the next"
    )

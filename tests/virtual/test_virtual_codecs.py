"""Codecs in virtual time: what they cost, with and without gradients."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from virtual_helpers import TIMES, Kept, make_cluster, make_job, time_only, with_gradients

from paceline.clusters.description import read_cluster
from paceline.codecs import CODECS
from paceline.codecs.context import Layout
from paceline.errors import Diverged, UsageError
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy

SHAPE = JobShape(
    name="matrices", layout=Layout(("a", "b"), ((300, 200), (2000,))), train_samples=800, test_samples=1
)
VECTOR = 4 * 62_000


def traffic(kept: Kept, rank: int = 0) -> list[tuple[int, int]]:
    return [(record.sent, record.received) for record in kept.records[rank] if record.is_step]


def communication(kept: Kept) -> float:
    steps = [record for record in kept.records[0] if record.is_step]
    return sum(span.length for span in steps[-1].spans if span.kind == "communicate")


PAIRS = [
    (codec, strategy)
    for codec in sorted(set(CODECS) - {"identity", "threshold"})
    for strategy in ("all-reduce", "local-sgd:period=2")
    if (codec, strategy) != ("dgc", "local-sgd:period=2")  # whose momentum goes with gradients only
]


@pytest.mark.parametrize(("codec", "strategy"), PAIRS)
def test_with_gradients_and_without_as_many_bytes_are_sent(codec: str, strategy: str) -> None:
    job, cluster = make_job(), make_cluster(3, bandwidth=1e4)
    settings = {"strategy_name": strategy, "codec": codec, "iterations": 4}
    computed, timed = (
        with_gradients(job, cluster, **settings)[1],
        time_only(cluster, JobShape.of(job), **settings)[1],
    )
    for rank in range(3):
        assert traffic(computed, rank) == traffic(timed, rank)
    assert communication(computed) == pytest.approx(communication(timed))


@pytest.mark.parametrize("codec", sorted({*CODECS, "threshold:bound=0.5"} - {"threshold"}))
def test_three_workers_learn_and_stay_equal(codec: str) -> None:
    """A strategy of replicas fails where their parameters differ."""
    _, kept = with_gradients(make_job(), make_cluster(3), codec=codec, iterations=12)
    assert all(tensor.isfinite().all() for tensor in kept.model.values())
    _, plain = with_gradients(make_job(), make_cluster(3), iterations=12)
    assert set(kept.model) == set(plain.model)
    assert (codec == "identity") == all(
        torch.equal(kept.model[name], plain.model[name]) for name in plain.model
    )


def test_a_warm_up_sends_as_much_as_its_round_says() -> None:
    _, kept = time_only(make_cluster(2), SHAPE, codec="dgc:ratio=0.01,warmup=3", iterations=5)
    sent = [one for one, _ in traffic(kept)]
    assert sent[0] > sent[1] > sent[2] > sent[3] == sent[4]
    assert sent[0] == pytest.approx(0.25 * VECTOR * 2, rel=0.01)


def test_coding_takes_the_stated_time_and_none_where_none_is_stated() -> None:
    def seconds(rate: float, codec: str = "half", **changes) -> float:
        cluster = make_cluster(2, bandwidth=1e12, times=replace(TIMES, coding=rate), **changes)
        return communication(time_only(cluster, SHAPE, codec=codec)[1])

    assert seconds(0.0) < 1e-6
    # Half reads 4 bytes an element and writes 2, clamps these, and reads 2 and writes 4 in place of what is there.
    assert seconds(1e6) == pytest.approx(4 * VECTOR / 1e6, rel=0.4)
    assert seconds(1e6, "identity") < 1e-6
    assert seconds(1e6) == pytest.approx(10 * seconds(1e7), rel=1e-3)


def test_a_rate_of_coding_is_described_with_the_times() -> None:
    cluster = read_cluster("hosts=2,forward=1 ms,backward=2 ms,coding=1 GB/s")
    assert cluster.times.coding == 1e9
    with pytest.raises(UsageError, match="coding"):
        read_cluster("hosts=2,forward=1 ms,backward=2 ms,coding=3")


def test_one_worker_sends_and_codes_nothing() -> None:
    coding = replace(TIMES, coding=1.0)
    _, kept = time_only(make_cluster(1, times=coding), SHAPE, codec="int8")
    assert communication(kept) == 0
    _, computed = with_gradients(make_job(), make_cluster(1), codec="sign")
    _, plain = with_gradients(make_job(), make_cluster(1))
    assert all(torch.equal(computed.model[name], plain.model[name]) for name in plain.model)


def test_a_difference_that_is_not_finite_is_reported_with_the_step_that_made_it() -> None:
    """After that step it is sent; live runs count the same."""
    job = make_job(lambda: nn.Sequential(Overflowing(6, 2)))
    with pytest.raises(Diverged, match=r"of the update of 0.weight are .* on rank 0 in step 3"):
        with_gradients(
            job, make_cluster(2), codec="top-k", strategy=build_strategy("local-sgd:period=1"), iterations=5
        )


class Overflowing(nn.Linear):
    """Its gradient is infinite from the third step on, and its loss is finite."""

    def forward(self, inputs):
        self.calls = getattr(self, "calls", 0) + 1
        outputs = super().forward(inputs)
        if self.calls > 2 and outputs.requires_grad:
            outputs.register_hook(lambda grad: grad * float("inf"))
        return outputs


def test_a_gradient_that_is_not_finite_is_reported_with_rank_step_and_parameter() -> None:
    job = make_job(lambda: nn.Sequential(Overflowing(6, 2)))
    with pytest.raises(Diverged, match=r"of the update of 0.weight are .* on rank 0") as raised:
        with_gradients(job, make_cluster(2), codec="top-k", iterations=5)
    assert "step 3" in str(raised.value)

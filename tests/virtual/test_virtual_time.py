"""Without gradients: every second of every worker is where it should be."""

from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_helpers import SHAPE, TIMES, Cadence, make_cluster, make_job, prepared_of, settings_of, time_only

from paceline.clusters.cluster import StepTimes
from paceline.codecs.context import Layout
from paceline.costs.stated import stated_costs
from paceline.errors import UsageError
from paceline.records.files import encode_line
from paceline.records.spans import StepBreakdown, TimeLedger
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.all_reduce import AllReduceSGD
from paceline.units import Size

STEP_BYTES = 4 * (1000 + CONTROL)


def test_all_reduce_step_by_hand() -> None:
    # 4 workers at 1 MB/s with 10 ms delay: 6 steps of 10 ms and a quarter of the gradient each.
    summary, kept = time_only(make_cluster(4, latency=0.01))
    ring = 6 * (0.01 + STEP_BYTES / 4 / 1e6)
    broadcast = 2 * (0.01 + 4000 / 1e6)
    first, *steps = kept.records[2]
    assert [span.kind for span in steps[0].spans] == ["data", "forward", "backward", "communicate", "apply"]
    assert [span.length for span in steps[0].spans] == pytest.approx([0.5, 1.0, 2.0, ring, 0.25])
    assert summary.seconds == pytest.approx(broadcast + 5 * (3.75 + ring))
    assert (first.samples, first.spans[0].length) == (0, pytest.approx(broadcast))
    assert steps[0].sent == steps[0].received == 2 * 3 * STEP_BYTES // 4
    assert [record.step for record in steps] == [1, 2, 3, 4, 5]


def test_buckets_are_reduced_while_backward_goes_on() -> None:
    # 2 workers, 1 MB/s. The second parameter's 1600 B are ready after 0.4 of backward, the rest at its end.
    shape = JobShape(name="two", layout=Layout.of_vectors(600, 400), train_samples=800, test_samples=1)
    bandwidth = 4000.0
    _, kept = time_only(make_cluster(2, bandwidth=bandwidth), shape)
    single = kept.records[0][1]
    assert not single.hidden

    cut = AllReduceSGD(first_bucket=Size(1600), bucket=Size(1600))
    _, kept = time_only(make_cluster(2, bandwidth=bandwidth), shape, strategy=cut)
    step = kept.records[0][1]
    start = step.spans[0].start
    (hidden,) = step.hidden
    # A ring of two moves all bytes once: 1600 B take 0.4 s, from 1.5 + 0.8 on; 2464 B follow at the end.
    assert (hidden.start - start, hidden.length) == pytest.approx((2.3, 0.4))
    exposed = next(span for span in step.spans if span.kind == "communicate")
    assert (exposed.start - start, exposed.length) == pytest.approx((3.5, (2400 + 4 * CONTROL) / bandwidth))
    assert step.sent == 4000 + 4 * CONTROL


def test_a_bucket_that_is_not_through_when_backward_ends_is_hidden_only_in_part() -> None:
    shape = JobShape(name="two", layout=Layout.of_vectors(600, 400), train_samples=800, test_samples=1)
    cut = AllReduceSGD(first_bucket=Size(1600), bucket=Size(1600))
    _, kept = time_only(make_cluster(2, bandwidth=800.0), shape, strategy=cut)
    step = kept.records[0][1]
    # 1600 B at 800 B/s take 2 s from 2.3 on; backward ends at 3.5, so 1.2 s are hidden and the rest is exposed.
    assert step.hidden[0].length == pytest.approx(1.2)
    exposed = next(span for span in step.spans if span.kind == "communicate")
    assert exposed.length == pytest.approx(0.8 + (2400 + 4 * CONTROL) / 800)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=2"])
def test_the_others_wait_for_a_slow_worker_exactly_the_difference(strategy: str) -> None:
    summary, _ = time_only(make_cluster(3), iterations=6, slow={1: 2.5}, strategy_name=strategy)
    fast, slow, other = summary.totals
    assert slow.seconds["wait"] == pytest.approx(0)
    assert fast.seconds["wait"] == other.seconds["wait"] == pytest.approx(6 * 1.5 * (1.0 + 2.0))
    assert slow.seconds["forward"] == pytest.approx(2.5 * fast.seconds["forward"])
    assert slow.seconds["apply"] == fast.seconds["apply"] == pytest.approx(6 * 0.25)


def test_a_device_of_half_the_speed_takes_twice_as_long_for_everything() -> None:
    cluster = make_cluster(2)
    old = type(cluster.hosts[0].device)(speed=0.5)
    hosts = (cluster.hosts[0], type(cluster.hosts[0])(name="old", link=cluster.hosts[1].link, device=old))
    summary, _ = time_only(type(cluster).of(hosts, times=TIMES), detailed=False)
    fast, slow = summary.totals
    for kind in ("data", "forward", "backward", "apply"):
        assert slow.seconds[kind] == pytest.approx(2 * fast.seconds[kind])


def test_the_end_of_an_epoch_takes_its_part() -> None:
    # 100 samples in batches of 2 x 24: 3 steps an epoch, the last with 2 samples a worker.
    shape = JobShape(name="odd", layout=Layout.of_vectors(10), train_samples=100, test_samples=1)
    summary, kept = time_only(make_cluster(2), shape, batch_sizes=(24, 24), epochs=2)
    assert [record.samples for record in kept.records[0] if record.samples] == [24, 24, 2] * 2
    assert summary.totals[0].seconds["forward"] == pytest.approx(2 * (1 + 1 + 2 / 24))
    assert summary.samples == 200


def test_a_step_without_samples_is_a_step_and_no_meeting() -> None:
    # 65 samples in batches of 2 x 16: the third step of an epoch has one sample, and rank 0 none of it.
    shape = JobShape(name="leftover", layout=Layout.of_vectors(10), train_samples=65, test_samples=1)
    times = StepTimes(step=StepBreakdown(forward=1.0, backward=2.0), checkpoint=0.5)
    summary, kept = time_only(
        make_cluster(2, times=times), shape, batch_sizes=(16, 16), epochs=2, checkpoint=Cadence(3, "steps")
    )
    assert [totals.steps for totals in summary.totals] == [6, 6]
    first, *records = kept.records[0]
    assert not first.is_step
    assert [(record.step, record.samples, record.is_step) for record in records[2:4]] == [
        (3, 0, True),
        (3, 0, False),
    ]
    assert [span.kind for span in records[3].spans] == ["checkpoint"]


def test_uneven_batches_are_each_timed_for_their_own_size() -> None:
    summary, _ = time_only(make_cluster(2), batch_sizes=(48, 16), iterations=3)
    assert [total.samples for total in summary.totals] == [144, 48]
    assert summary.totals[0].seconds["forward"] == summary.totals[1].seconds["forward"] == pytest.approx(3)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3", "local-sgd:period=7s"])
def test_spans_follow_each_other_and_add_up(strategy: str) -> None:
    cluster = make_cluster(
        4,
        per_host=2,
        times=StepTimes(step=StepBreakdown(data=0.1, forward=1.0, backward=2.0, apply=0.3), jitter=0.2),
    )
    summary, kept = time_only(
        cluster, iterations=20, slow={3: 1.5}, checkpoint=Cadence(7, "steps"), strategy_name=strategy
    )
    ends = []
    for rank, totals in enumerate(summary.totals):
        ledger, now = TimeLedger(), 0.0
        for record in kept.records[rank]:
            ledger.add(record)
            for span in record.spans:
                assert span.start == pytest.approx(now)
                now = span.start + span.length
        ends.append(now)
        assert sum(totals.seconds.values()) == pytest.approx(now)
        added = ledger.totals()
        assert added.seconds == pytest.approx(totals.seconds)
        assert astuple(added.typical) == pytest.approx(astuple(totals.typical))
        assert added.outside == pytest.approx(totals.outside)
        assert (added.sent, added.steps, added.samples) == (totals.sent, totals.steps, totals.samples)
    assert max(ends) == pytest.approx(summary.seconds)


def test_totals_are_the_same_whether_or_not_steps_are_recorded() -> None:
    cluster = make_cluster(4, per_host=2)
    slow, quick = (time_only(cluster, detailed=detailed, slow={0: 2.0})[0] for detailed in (True, False))
    assert slow == quick


def test_without_gradients_there_is_no_model_to_keep() -> None:
    _, kept = time_only(make_cluster(2))
    assert kept.model is None


def test_a_checkpoint_takes_its_time_in_a_record_of_its_own() -> None:
    times = StepTimes(step=StepBreakdown(forward=1.0, backward=1.0), checkpoint=0.5)
    summary, kept = time_only(make_cluster(2, times=times), iterations=4, checkpoint=Cadence(2, "steps"))
    meetings = [record for record in kept.records[1] if not record.is_step][1:]
    assert [(record.step, record.spans[0].kind) for record in meetings] == [
        (2, "checkpoint"),
        (4, "checkpoint"),
    ]
    assert summary.totals[0].seconds["checkpoint"] == 1.0


def test_local_sgd_by_seconds_lets_fast_workers_take_more_steps_and_all_stop_together() -> None:
    summary, kept = time_only(
        make_cluster(2), iterations=30, slow={1: 3.0}, strategy_name="local-sgd:period=20s"
    )
    fast, slow = summary.totals
    assert fast.steps > 1.5 * slow.steps
    assert summary.samples == fast.samples + slow.samples >= 30 * 16
    rounds = [
        sum(span.kind == "communicate" for r in records for span in r.spans)
        for records in kept.records.values()
    ]
    assert rounds[0] == rounds[1]
    assert summary.steps == summary.samples // 16


def test_same_seed_same_record_byte_for_byte_and_another_seed_another() -> None:
    cluster = make_cluster(4, times=StepTimes(step=StepBreakdown(forward=1.0, backward=2.0), jitter=0.3))

    def lines(seed: int) -> bytes:
        _, kept = time_only(cluster, seed=seed, strategy_name="local-sgd:period=2")
        return b"".join(encode_line(record) for rank in range(4) for record in kept.records[rank])

    assert lines(1) == lines(1) != lines(2)


def test_jitter_varies_steps_by_about_its_size_and_leaves_the_median() -> None:
    costs = stated_costs(
        make_cluster(2, times=StepTimes(step=StepBreakdown(forward=1.0, backward=1.0), jitter=0.1)),
        (8, 8),
        {},
    )
    drawn = torch.tensor([costs.gradient(rank, 8, step).forward for rank in range(2) for step in range(2000)])
    assert drawn.log().std().item() == pytest.approx(0.1, rel=0.1)
    assert drawn.median().item() == pytest.approx(1.0, abs=0.01)
    other = torch.tensor([costs.gradient(1, 8, step).forward for step in range(2000)])
    assert abs(torch.corrcoef(torch.stack([drawn[:2000], other]))[0, 1]) < 0.1


@given(
    st.integers(2, 6),
    st.floats(1e3, 1e7),
    st.floats(1.0, 100.0),
    st.sampled_from(["all-reduce", "local-sgd:period=2"]),
)
@settings(max_examples=25, deadline=None)
def test_more_bandwidth_is_never_slower(workers: int, bandwidth: float, factor: float, strategy: str) -> None:
    narrow, wide = (
        time_only(
            make_cluster(workers, bandwidth=rate), detailed=False, slow={0: 1.3}, strategy_name=strategy
        )[0]
        for rate in (bandwidth, bandwidth * factor)
    )
    assert wide.seconds <= narrow.seconds * (1 + 1e-12)


def test_shape_of_a_job_is_that_of_its_model() -> None:
    job = make_job()
    shape = JobShape.of(job)
    assert shape.parameters == (48, 8, 16, 2)
    assert (shape.train_samples, shape.test_samples, shape.buffers) == (96, 50, 0)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a target accuracy of 0\.9 needs gradients"):
        time_only(make_cluster(2), target_accuracy=0.9)
    with pytest.raises(UsageError, match="an evaluation every 1 epoch needs gradients"):
        time_only(make_cluster(2), evaluate=Cadence(1))
    with pytest.raises(UsageError, match="2 workers contradict the cluster, which has 3"):
        time_only(make_cluster(3), batch_sizes=(8, 8))
    with pytest.raises(UsageError, match="does not say how long a step takes"):
        time_only(make_cluster(2, times=StepTimes()))
    cluster = make_cluster(2)
    costs = stated_costs(cluster, (8, 8), {})
    with pytest.raises(UsageError, match="only a shape"):
        simulate(Simulation(prepared_of(settings_of(2), SHAPE), cluster, costs))

"""One strategy on one cluster: how long a step takes, and why."""

import time
from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_setups import COST, LINK, SHAPE, make_setup, with_link

from paceline.clusters.cluster import Device, Link
from paceline.codecs.context import Layout
from paceline.collectives.traffic import plan_buckets
from paceline.errors import UsageError
from paceline.runtimes.virtual.shape import JobShape
from paceline.studies.predict.setup import Setup, slower
from paceline.studies.predict.step import find_bounds, predict_step

STRATEGIES = ("all-reduce", "local-sgd:period=4", "ps")


def test_a_bucket_waits_for_its_parameters_and_for_the_buckets_before_it() -> None:
    shape = JobShape(
        name="three",
        layout=Layout.of_vectors(1, 1, 1, 1),
        train_samples=1,
        test_samples=1,
        ready=(0.2, 0.9, 0.6, 0.3),
    )
    buckets = plan_buckets(shape.parameters, 4, 4, 4)
    # Last parameter first; the third bucket waits for its own 0.9, the last one for the end of backward.
    assert shape.filled(buckets) == (0.3, 0.6, 0.9, 1.0)
    early = replace(shape, ready=(0.1, 0.2, 0.6, 0.3))
    assert early.filled(buckets) == (0.3, 0.6, 0.6, 1.0)
    assert replace(shape, ready=()).filled(buckets) == (0.25, 0.5, 0.75, 1.0)


def test_gradients_that_are_ready_early_are_hidden() -> None:
    shape = replace(SHAPE, ready=(0.0,) * 20)
    early, late = (make_setup(8, shape=replace(shape, ready=(part,) * 20)) for part in (0.1, 1.0))
    assert predict_step(late).breakdown.hidden == 0
    assert predict_step(early).breakdown.hidden > 0.01
    assert predict_step(early).seconds < predict_step(late).seconds


def test_one_worker_computes_and_that_is_all() -> None:
    step = predict_step(make_setup(1))
    assert step.seconds == pytest.approx(COST.step.compute)
    assert (step.breakdown.communicate, step.breakdown.wait, step.sent) == (0, 0, 0)
    assert find_bounds(make_setup(1)).bound == "compute"
    assert step.rate == pytest.approx(32 / step.seconds)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ssp", "async", "local-sgd:period=1s"])
def test_the_parts_are_the_step(strategy: str) -> None:
    step = predict_step(make_setup(5, strategy, jitter=0.1))
    assert min(astuple(step.breakdown)) >= 0
    assert step.rate == pytest.approx(5 * 32 / step.seconds, rel=1e-6)


def test_what_bounds_a_step() -> None:
    fast = Link(bandwidth=1e12, latency=1e-7)
    assert find_bounds(make_setup(8, link=fast)).bound == "compute"
    assert find_bounds(make_setup(1)).besides == "compute"
    assert find_bounds(make_setup(8, link=Link(bandwidth=1e12, latency=1e-5))).besides == "latency"
    assert find_bounds(make_setup(8, link=Link(bandwidth=1e7, latency=1e-6))).bound == "bandwidth"
    assert find_bounds(make_setup(64, link=Link(bandwidth=1e12, latency=0.01))).bound == "latency"
    assert find_bounds(make_setup(64, "ps")).bound == "server"
    assert find_bounds(make_setup(64, "async")).bound == "server"
    assert find_bounds(make_setup(1000, link=fast, jitter=1.0)).bound == "straggler"
    uneven = make_setup(8, link=fast)
    hosts = (replace(uneven.cluster.hosts[0], device=Device(speed=0.1)), *uneven.cluster.hosts[1:])
    assert find_bounds(replace(uneven, cluster=uneven.cluster.with_hosts(hosts))).bound == "straggler"


def test_a_hundred_thousand_workers_take_no_time() -> None:
    setup = make_setup(100_000, jitter=0.1)
    begun = time.process_time()
    step, bounds = predict_step(setup), find_bounds(setup)
    # About 0.15 s; simulated worker by worker it would be minutes.
    assert time.process_time() - begun < 2
    assert (step.path, bounds.bound) == ("groups", "latency")


def test_what_would_take_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="shorter period"):
        predict_step(make_setup(2, "local-sgd:period=2000000"))
    with pytest.raises(UsageError, match="ask for fewer workers"):
        predict_step(make_setup(20_000, "local-sgd:period=1s", jitter=0.1))
    with pytest.raises(UsageError, match="exchange nothing"):
        predict_step(make_setup(2, "local-sgd:period=1s", cost=slower(COST, 0.0)))


def test_another_network() -> None:
    setup = make_setup(4, per_host=2)
    there = with_link(setup, Link(bandwidth=1e10, latency=1e-6))
    assert {host.link.bandwidth for host in there.cluster.hosts} == {1e10}
    assert {host.inside for host in there.cluster.hosts} == {setup.cluster.hosts[0].inside}
    alone = with_link(make_setup(2, per_host=2), LINK)
    assert alone.cluster.hosts[0].inside == LINK


@st.composite
def setups(draw) -> Setup:
    strategy = draw(st.sampled_from(STRATEGIES))
    collectives = ("native",) if strategy == "ps" else ("native", "tree", "halving-doubling")
    return make_setup(
        draw(st.integers(1, 64)),
        strategy,
        per_host=draw(st.sampled_from((1, 1, 2, 8))),
        link=Link(bandwidth=10 ** draw(st.floats(7, 12)), latency=10 ** draw(st.floats(-7, -2))),
        servers=draw(st.integers(1, 3)),
        collective=draw(st.sampled_from(collectives)),
        jitter=draw(st.sampled_from((0.0, 0.2))),
    )


@settings(max_examples=10, deadline=None)
@given(setups(), st.floats(1, 100))
def test_better_is_never_slower(setup: Setup, factor: float) -> None:
    link = setup.cluster.hosts[0].link
    now = predict_step(setup).seconds * (1 + 1e-9)
    faster = Link(bandwidth=link.bandwidth * factor, latency=link.latency)
    nearer = Link(bandwidth=link.bandwidth, latency=link.latency / factor)
    if len(setup.cluster.hosts) > 1:
        assert predict_step(with_link(setup, faster)).seconds <= now
        assert predict_step(with_link(setup, nearer)).seconds <= now
    assert predict_step(replace(setup, cost=slower(setup.cost, 1 / factor))).seconds <= now
    if setup.strategy != "ps":
        # With servers, workers that vary take turns on the servers' links, which may be quicker.
        assert predict_step(replace(setup, jitter=setup.jitter + 0.1)).seconds * (1 + 1e-9) >= now / (
            1 + 1e-9
        )


FAST = Link(bandwidth=1e11, latency=1e-6)


def exchange(strategy: str, cipher: float, workers: int = 4, **where) -> float:
    """Seconds of a step beyond computing, on a network that is faster than any encryption."""
    setup = make_setup(workers, strategy, link=FAST, servers=1, **where)
    step = predict_step(replace(setup, cluster=replace(setup.cluster, cipher=cipher)))
    return step.seconds - COST.step.data - COST.step.forward - COST.step.backward


@pytest.mark.parametrize("strategy", ["ps", "ssp:staleness=2", "async"])
def test_messages_to_servers_on_other_hosts_are_no_faster_than_encryption(strategy):
    """If this failed, a faster network would be advised where the processors' encryption is the limit."""
    slow, fast = exchange(strategy, 1e9), exchange(strategy, 1e10)
    assert slow > 3 * fast
    whole = 4 * sum(SHAPE.parameters)  # bytes of a model
    if strategy == "ps":  # three workers on other hosts push it to one server, and it answers them
        assert slow == pytest.approx(2 * 3 * whole / 1e9, rel=0.1)


def test_what_goes_through_no_server_or_leaves_no_host_is_not_encrypted():
    """If this failed, all-reduces and shared memory would be predicted slower than they are."""
    assert exchange("all-reduce", 1e9) == exchange("all-reduce", 1e10)
    assert exchange("ps", 1e9, per_host=4) == exchange("ps", 1e10, per_host=4)


def test_every_process_at_a_link_encrypts_for_itself():
    cluster = make_setup(4, per_host=2, link=FAST).cluster
    first, second = replace(cluster, cipher=1e9).encrypted([0, 0, 0]).hosts
    assert (first.link.bandwidth, second.link.bandwidth) == (3e9, 2e9)
    slow = make_setup(4, per_host=2).cluster
    assert slow.encrypted([0]) == slow, "what is slower than encryption stays as it is"


def test_an_overlapped_average_is_hidden_as_far_as_its_steps_reach() -> None:
    slow = Link(bandwidth=1e7, latency=1e-6)
    waits, late = (
        predict_step(make_setup(4, f"local-sgd:period=64{more}", link=slow)) for more in ("", ",overlap=64")
    )
    whole = waits.breakdown.communicate
    assert late.breakdown.hidden == pytest.approx(min(whole, COST.step.compute))
    assert late.breakdown.hidden + late.breakdown.communicate == pytest.approx(whole, rel=1e-3)
    assert late.sent == pytest.approx(waits.sent, rel=1e-6)
    assert late.seconds == pytest.approx(max(COST.step.compute, whole), rel=1e-3)
    uneven = make_setup(3, "local-sgd:period=8,overlap=8", jitter=0.2)
    assert predict_step(uneven).path == "events", "what a wait hides of the jitter, no closed form says"


def test_a_strategy_is_predicted_as_it_goes_on() -> None:
    local = predict_step(make_setup(4, "local-sgd:period=16"))
    assert predict_step(make_setup(4, "post-local:switch=500,period=16")) == local
    assert predict_step(make_setup(4, "local-sgd:period=2,growth=2,longest=16")) == local


def test_a_period_that_adapts_is_predicted_with_its_share() -> None:
    for workers, bandwidth in ((2, 1e8), (64, 1e8), (4, 1e10)):
        link = Link(bandwidth=bandwidth, latency=1e-6)
        step = predict_step(make_setup(workers, "local-sgd:comm=5%", link=link))
        share = step.breakdown.communicate / step.seconds
        assert share == pytest.approx(0.05, rel=0.1) or (share < 0.05 and bandwidth == 1e10), "of whole steps"
    assert predict_step(make_setup(1, "local-sgd:comm=5%")).seconds == pytest.approx(COST.step.compute)

"""Steps with encoded gradients."""

from dataclasses import replace

import pytest
from predict_setups import COST, SHAPE, make_setup
from test_closed_path import assert_equal

from paceline.clusters.cluster import Link
from paceline.codecs import CODECS, build_codec
from paceline.codecs.context import Layout
from paceline.collectives import SCHEDULES
from paceline.costs.coding import UNCODED, CodecCosts, MemoryRate
from paceline.runtimes.virtual.served_coding import served_coding
from paceline.studies.predict.approximation import approximate_bounded
from paceline.studies.predict.simulation import by_events, by_groups
from paceline.studies.predict.step import find_bounds, predict_step

MATRICES = replace(SHAPE, layout=Layout(tuple(map(str, range(20))), ((1000,), *((600, 1000),) * 18, (5000,))))
SLOW = Link(bandwidth=1e8, latency=5e-5)
VECTOR = 4 * SHAPE.size


def coding(spec, rate=0.0):
    """On a device that moves so many bytes a second."""
    return CodecCosts(codec=build_codec(spec), timed=MemoryRate(rate))


def coded(workers, strategy, spec, rate=0.0, **changes):
    return make_setup(workers, strategy, shape=MATRICES, coding=coding(spec, rate), **changes)


@pytest.mark.parametrize("spec", ["half", "int8", "top-k", "threshold", "powersgd"])
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3"])
def test_the_closed_path_equals_events_with_a_codec_too(strategy, spec):
    for workers in (1, 2, 5, 12):
        setup = coded(workers, strategy, spec, 1e11)
        assert_equal(by_groups(setup), by_events(setup))


def test_bytes_that_are_whole_are_whole_in_the_mean_of_many_workers():
    """Weights of workers left dust in them: 12911.000000000002."""
    found = [predict_step(coded(workers, "all-reduce", "half")).sent for workers in range(2, 12)]
    assert [one % 1 for one in found] == [0.0] * len(found)


def test_with_servers_both_ways_are_shorter():
    plain, half = (coded(64, "async", spec) for spec in ("identity", "half"))
    # The server's link is busy all the time; one worker is on its host, and does not use it.
    assert approximate_bounded(half).rate == pytest.approx(1.8 * approximate_bounded(plain).rate, rel=0.02)
    few = coded(1, "async", "half"), coded(1, "async", "identity")
    gain = predict_step(few[1]).seconds - predict_step(few[0]).seconds
    assert gain == pytest.approx(VECTOR / 4e9, rel=0.05), "half of a push and of a model through memory"


@pytest.mark.parametrize("link", [SLOW, Link(bandwidth=1.25e9, latency=5e-5)])
@pytest.mark.parametrize("rate", [2e9, 1e11])
def test_servers_that_encode_for_many_workers_are_approximated(rate, link):
    """Rounds in which the links, the servers or the workers take longest."""
    for spec, workers, servers, jitter in (("half", 24, 1, 0.0), ("top-k", 12, 2, 0.2)):
        setup = coded(workers, "ps", spec, rate, servers=servers, link=link, jitter=jitter)
        assert approximate_bounded(setup).seconds == pytest.approx(by_events(setup).seconds, rel=0.15)


def test_a_server_has_to_decode_and_to_encode_for_every_worker():
    one = coded(1, "ps", "int8", 1e9)
    both = served_coding(one.coding, MATRICES.layout, MATRICES.dtype, servers=1)[0]
    server = both.push.decode + both.model.encode
    assert predict_step(coded(100, "async", "int8", 1e9)).seconds >= 100 * server
    assert find_bounds(coded(100, "async", "int8", 1e9)).bound == "codec"
    assert (
        predict_step(coded(2, "ps", "int8", 1e9, servers=2)).seconds
        < predict_step(coded(2, "ps", "int8", 1e9)).seconds
    ), "two servers share the work"


def test_what_is_gathered_loses_among_many_workers_and_what_is_scattered_does_not():
    def gain(spec, workers):
        plain = predict_step(make_setup(workers, link=SLOW)).seconds
        return plain / predict_step(coded(workers, "all-reduce", spec, link=SLOW)).seconds

    assert gain("dgc:ratio=0.05", 2) > 4
    assert gain("dgc:ratio=0.05", 16) < 2
    assert gain("int8", 64) > 3
    assert gain("int8", 64) == pytest.approx(gain("int8", 8), rel=0.2)


def test_coding_takes_its_time_and_is_no_part_of_what_hides_behind_backward():
    free, slow = (predict_step(coded(4, "all-reduce", "half", rate)) for rate in (0.0, 1e9))
    moved = coding("half", 1.0).reduction(MATRICES.layout, MATRICES.dtype, 4).coding / 1e9
    assert slow.breakdown.backward == COST.step.backward
    assert slow.breakdown.communicate >= moved
    assert free.seconds + 0.5 * moved < slow.seconds <= free.seconds + moved + 1e-3
    assert find_bounds(coded(4, "all-reduce", "half", 1e8)).bound == "codec"
    fast = make_setup(4, link=Link(bandwidth=1e12, latency=0.0))
    with_codec = replace(fast, shape=MATRICES, coding=coding("half", 1e10))
    assert predict_step(with_codec).seconds == pytest.approx(
        predict_step(fast).seconds + moved / 10, rel=0.01
    )


def test_the_slowest_worker_codes_longest():
    setup = coded(4, "all-reduce", "int8", 1e9)
    half = setup.cluster.map_hosts(lambda host: replace(host, device=replace(host.device, speed=0.5)))
    slower = predict_step(replace(setup, cluster=half)).breakdown.communicate
    assert slower == pytest.approx(2 * predict_step(setup).breakdown.communicate, rel=0.1)


@pytest.mark.parametrize("spec", sorted(CODECS))
def test_every_codec_is_priced_by_every_schedule_for_every_strategy(spec):
    """Steps are longer than computing, not faster where coding takes time, and never a traceback."""
    alone = predict_step(make_setup(1)).seconds
    for strategy in ("all-reduce", "local-sgd:period=3"):
        for collective in ("native", *SCHEDULES):
            for workers, per_host in ((2, 1), (5, 1), (8, 4)):
                settings = {"collective": collective, "per_host": per_host, "link": SLOW}
                free, timed = (
                    predict_step(coded(workers, strategy, spec, rate, **settings)).seconds
                    for rate in (0.0, 1e11)
                )
                plain = predict_step(make_setup(workers, strategy, **settings)).seconds
                assert alone < free <= timed, (strategy, collective, workers)
                # With two hosts of four workers each, pairs use the slow links at the same time.
                assert free < 1.1 * plain, (strategy, collective, workers)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3"])
def test_the_closed_path_equals_events_with_a_codec_by_a_schedule(strategy):
    for collective in SCHEDULES:
        setup = coded(5, strategy, "half", 1e11, collective=collective)
        # The bytes of a worker are a mean in whole bytes.
        assert_equal(by_groups(setup), by_events(setup), within=1e-7)


def test_a_warm_up_is_over_where_a_step_is_predicted():
    with_warm_up, without = (
        predict_step(coded(4, "all-reduce", f"dgc:warmup={steps}", link=SLOW)) for steps in (10_000, 0)
    )
    assert with_warm_up == without


def test_without_a_codec_nothing_is_added():
    assert predict_step(coded(4, "all-reduce", "identity", 1e9)) == predict_step(
        make_setup(4, shape=MATRICES, coding=UNCODED)
    )

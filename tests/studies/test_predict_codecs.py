"""Steps with encoded gradients."""

from dataclasses import replace

import pytest
import torch
from predict_setups import COST, SHAPE, make_setup
from test_closed_path import assert_equal

from paceline.clusters.cluster import Link
from paceline.codecs import CODECS, build_codec
from paceline.collectives import SCHEDULES
from paceline.costs.device import Compression, compression_of
from paceline.studies.predict.approximation import approximate_bounded
from paceline.studies.predict.simulation import by_events, by_groups
from paceline.studies.predict.step import find_bounds, predict_step

TENTH = Compression(sums=False, ratio=0.1, encode_rate=1e-10, decode_rate=1e-11, held_rate=1.0)
HALF = Compression(sums=True, ratio=0.5, encode_rate=0.0, decode_rate=0.0, held_rate=0.0)


def coded(workers, strategy, compression, **changes):
    return make_setup(workers, strategy, shape=replace(SHAPE, compression=compression), **changes)


@pytest.mark.parametrize("compression", [TENTH, HALF], ids=["gathered", "added"])
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3", "ps"])
def test_the_closed_path_equals_events_with_a_codec_too(strategy, compression):
    for workers in (1, 2, 5, 12):
        setup = coded(workers, strategy, compression)
        assert_equal(by_groups(setup), by_events(setup))


def test_workers_that_do_not_wait_push_less_and_get_the_whole_model():
    plain, half = (coded(64, "async", compression) for compression in (SHAPE.compression, HALF))
    # The server's link out carries the whole models and is busy all the time: gradients of half the size do not help.
    assert approximate_bounded(half).rate == pytest.approx(approximate_bounded(plain).rate, rel=0.02)
    few = coded(1, "async", HALF), coded(1, "async", SHAPE.compression)
    gain = predict_step(few[1]).seconds - predict_step(few[0]).seconds
    assert gain == pytest.approx(0.5 * SHAPE.size * 4 / 4e9, rel=0.05), "half of one push through memory"


def test_gathering_turns_a_gain_into_a_loss_with_many_workers():
    def gain(workers):
        return (
            predict_step(make_setup(workers)).seconds
            / predict_step(coded(workers, "all-reduce", TENTH)).seconds
        )

    assert gain(2) > 1.01
    assert gain(64) < 0.99


def test_encoding_takes_its_time():
    slow = replace(TENTH, encode_rate=1e-8)
    longer = (
        predict_step(coded(4, "all-reduce", slow)).seconds
        - predict_step(coded(4, "all-reduce", TENTH)).seconds
    )
    assert 0.1 * SHAPE.size * 4 * 1e-8 < longer <= SHAPE.size * 4 * 1e-8
    assert predict_step(coded(4, "all-reduce", slow)).breakdown.backward == COST.step.backward
    assert find_bounds(coded(4, "all-reduce", replace(TENTH, encode_rate=1e-6))).bound == "codec"


def real(spec: str) -> Compression:
    """A codec of the table on parameters of this size, on a device that moves 100 GB/s."""
    codec = build_codec(spec)
    shapes = [(600, 1000)] * 18
    return compression_of(codec, shapes, torch.float32, lambda one: (one.read + one.written) / 1e11)


@pytest.mark.parametrize("spec", sorted(CODECS))
def test_every_codec_is_priced_by_every_schedule_for_every_strategy(spec):
    """Steps are longer than computing, shorter than with ten times the bytes, and never a traceback."""
    codec = real(spec)
    free = replace(codec, encode_rate=0.0, decode_rate=0.0, held_rate=0.0)
    worse = replace(free, ratio=10 * codec.ratio)
    slow = Link(bandwidth=1e8, latency=5e-5)
    alone = predict_step(make_setup(1)).seconds
    for strategy in ("all-reduce", "local-sgd:period=3"):
        for collective in ("native", *SCHEDULES):
            for workers, per_host in ((2, 1), (5, 1), (8, 4)):
                settings = {"collective": collective, "per_host": per_host, "link": slow}
                steps = [
                    predict_step(coded(workers, strategy, one, **settings)).seconds
                    for one in (free, codec, worse)
                ]
                assert alone < steps[0] <= steps[1], (strategy, collective, workers)
                assert steps[0] <= steps[2], (strategy, collective, workers)
                if codec.sums and codec.ratio < 1:
                    plain = predict_step(make_setup(workers, strategy, **settings)).seconds
                    assert steps[0] <= plain, (strategy, collective, workers)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3"])
def test_the_closed_path_equals_events_with_a_codec_by_a_schedule(strategy):
    for collective in SCHEDULES:
        setup = coded(5, strategy, replace(HALF, encode_rate=1e-10), collective=collective)
        # The bytes of a worker are a mean in whole bytes.
        assert_equal(by_groups(setup), by_events(setup), within=1e-7)

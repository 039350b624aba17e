"""A device model that is learned from measured operators."""

import json
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from paceline.costs.device import step_cost
from paceline.costs.fitted import (
    NOISES,
    DevicePeaks,
    FittedCurve,
    FittedDevice,
    FreshMemory,
    Overhead,
    at_best,
    best_smoothness,
    features,
    fit_curve,
    read_fitted,
    scales,
)
from paceline.costs.trace.operator import Operator, Product, kind_of
from paceline.costs.trace.trace import Trace, trace
from paceline.errors import RunFailed, UsageError
from paceline.jobs.build import traceable_of
from paceline.records.spans import StepBreakdown
from paceline.studies.calibrate.device_fit import DeviceFit, fit_device, step_errors
from paceline.studies.calibrate.measure import MeasuredNetwork, TimedOperator

LIMITS = DevicePeaks(flops=1e11, bandwidth=1e10)


def product(m, n, k, phase="forward"):
    sizes = 4 * (m * k + k * n), 4 * m * n
    return Operator(
        name="mm",
        kind="product",
        phase=phase,
        module="",
        flops=2.0 * m * n * k,
        read=sizes[0],
        written=sizes[1],
        elements=m * n,
        shape=Product(batch=1, m=m, n=n, k=k),
    )


def law(operator):
    """A device whose products are the less efficient the thinner they are."""
    shape = operator.shape
    share = 0.9 * min(1.0, min(shape.m, shape.n, shape.k) / 256) ** 0.4
    return operator.flops / (LIMITS.flops * share) + 5e-6


def draw(random):
    return tuple(round(8 * 2 ** (7 * random.random())) for _ in range(3))


def network(number, noise=0.0, pace=1.0):
    random = Random(number)
    timed = []
    for phase in ("forward", "backward", "apply"):
        for _ in range(4):
            one = product(*draw(random), phase)
            timed.append(TimedOperator(one, law(one) * pace * (1 + noise * random.uniform(-1, 1)), 0.0))
    # As it runs: a tenth longer than its operators, and 10 us a call.
    sums = [
        sum(t.seconds for t in timed if t.operator.phase == phase)
        for phase in ("forward", "backward", "apply")
    ]
    forward, backward, apply = (1.1 * total + 4 * 10e-6 * pace for total in sums)
    step = StepBreakdown(forward=forward, backward=backward, apply=apply)
    return MeasuredNetwork(operators=tuple(timed), pace=pace, step=step)


class Fit(NamedTuple):
    device: FittedDevice
    found: DeviceFit


def fitted(networks, page=0.0):
    return Fit(*fit_device(networks, [], LIMITS, page))


@pytest.fixture(scope="module")
def fit():
    return fitted([network(number, noise=0.05) for number in range(16)])


def test_a_known_law_is_found_again(fit):
    random = Random(99)
    asked = [product(*draw(random)) for _ in range(40)]
    off = [abs(fit.device.warm(one) / law(one) - 1) for one in asked]
    assert np.median(off) < 0.06
    assert max(off) < 0.5


def test_overheads_of_whole_steps_are_found(fit):
    for overhead in fit.device.overheads.values():
        assert overhead.ratio == pytest.approx(1.1, abs=0.03)
        assert overhead.call == pytest.approx(10e-6, abs=5e-6)


def test_steps_are_predicted_by_what_has_not_seen_them():
    """Whatever a network took, its own step is predicted alike: by curves, kinds, overheads and pages of others."""
    networks = [network(number) for number in range(9)]
    networks[0] = renamed(networks[0])
    usual, odd = (
        step_errors([first, *networks[1:]], LIMITS, page=1e-8) for first in (networks[0], twice(networks[0]))
    )
    assert odd[0] == pytest.approx(usual[0] - np.log(2), abs=1e-9)
    assert odd[2] != usual[2], "others do learn from it"
    fit = fitted(networks, page=1e-8)
    assert fit.device.spread == pytest.approx(np.sqrt(np.mean(np.square(usual))))
    assert fit.found.steps[0] == pytest.approx(np.median(np.abs(np.expm1(usual))))


def renamed(one):
    """The same network with a few operators that no other has, and that are priced by their kind."""
    few = [replace(t, operator=replace(t.operator, name="bmm")) for t in one.operators[:4]]
    return replace(one, operators=(*few, *one.operators[4:]))


def twice(one):
    """The same network, all of whose times are twice as long and touch memory, on a machine at the same pace."""
    timed = tuple(TimedOperator(t.operator, 2 * t.seconds, 50.0) for t in one.operators)
    return replace(one, operators=timed, step=one.step * 2)


def test_every_operator_has_as_many_features_as_its_curve():
    """Else a curve could not say anything of it, or of which curves a profile may hold."""
    asked = [
        traceable_of("resnet18"),
        traceable_of("gpt:layers=1"),
        traceable_of("cnn", shape=(1, 8, 8), classes=10),
    ]
    for traced in (trace(subject, 2) for subject in asked):
        for one in (*traced.forward, *traced.backward, *traced.apply):
            assert kind_of(one.name) == one.kind
            assert len(features(one, 1e6)) == len(scales(one.kind)), one.name


def test_a_slow_moment_of_the_machine_is_not_taken_for_a_slow_operator():
    steady = fitted([network(number) for number in range(9)])
    uneven = fitted([network(number, pace=1.0 + 0.3 * (number % 3 == 0)) for number in range(9)])
    asked = product(128, 128, 128)
    assert uneven.device.warm(asked) == pytest.approx(steady.device.warm(asked), rel=0.06)


def test_far_away_it_stays_at_the_edge_and_never_above_the_peak(fit):
    for size in (1, 8, 1024, 8192, 65536):
        one = product(size, size, size)
        seconds = fit.device.seconds(one)
        assert seconds >= one.flops / fit.device.peak
        assert 0 < seconds < 20 * at_best(one, LIMITS) + 1e-3


def test_more_of_the_same_takes_longer(fit):
    times = [fit.device.seconds(product(size, 512, 512)) for size in (16, 64, 256, 1024)]
    assert times == sorted(times)


def test_an_operator_that_was_never_measured_is_priced_by_its_kind(fit):
    known, unknown = product(256, 256, 256), replace(product(256, 256, 256), name="bmm")
    assert fit.device.warm(unknown) == pytest.approx(fit.device.warm(known), rel=0.3)


def step_of(*operators):
    return Trace(
        name="some", samples=1, forward=operators, backward=(), apply=(), parameters=(), buffers=0, dtype=None
    )


def test_what_was_never_measured_is_named_with_its_share_and_widens_the_interval(fit):
    """Else a model of layers that no calibration has seen would look as certain as any other."""
    known, unknown = product(256, 256, 256), replace(product(256, 256, 256), name="my_op")
    sure = step_cost(step_of(known), fit.device)
    half = step_cost(step_of(known, unknown), fit.device)
    all_of_it = step_cost(step_of(unknown), fit.device)
    assert (sure.unmeasured, sure.spread) == ({}, fit.device.spread)
    assert half.unmeasured == {"my_op": pytest.approx(0.5, abs=0.1)}
    assert all_of_it.unmeasured == {"my_op": pytest.approx(1.0)}
    assert all_of_it.spread == pytest.approx(np.hypot(fit.device.spread, fit.device.doubts["product"]))
    assert sure.spread < half.spread < all_of_it.spread


def test_the_doubt_about_an_unmeasured_operator_is_what_leaving_one_out_shows():
    """An operator three times as slow as others of its kind: predicted by these it is off by that factor."""

    def slower(one):
        few = [TimedOperator(replace(t.operator, name="bmm"), 3 * t.seconds, 0.0) for t in one.operators[:6]]
        return replace(one, operators=(*few, *one.operators[6:]))

    fit = fitted([slower(network(number)) for number in range(16)])
    assert fit.device.doubts["product"] == pytest.approx(np.log(3), rel=0.15)
    assert read_fitted(json.loads(json.dumps(fit.device.to_json())), "here").doubts == fit.device.doubts


def test_a_kind_that_was_never_measured_is_doubted_most(fit):
    """Its time is that of the roofline, which no kernel reaches."""
    unknown = replace(product(256, 256, 256), name="my_op", kind="recurrence")
    cost = step_cost(step_of(unknown), fit.device)
    assert cost.spread == pytest.approx(np.hypot(fit.device.spread, fit.device.doubts[""]))


def test_fresh_memory_costs_a_page_at_a_time():
    large = replace(product(64, 64, 64), written=64 * 2**20)
    fresh = FreshMemory(page=2e-6, shares=(0.0, 0.25, 0.5, 1.0))
    assert fresh.seconds(large) == pytest.approx(64 * 2**20 / 4096 * 2e-6)
    assert fresh.seconds(replace(large, name="add_")) == 0.0
    assert fresh.seconds(replace(large, written=2**20)) == pytest.approx(2**20 / 4096 * 0.25 * 2e-6)


def test_a_step_is_priced_with_what_is_around_its_operators(fit):
    one = product(64, 64, 64)
    trace = Trace(
        name="one", samples=1, forward=(one,), backward=(), apply=(), parameters=(), buffers=0, dtype=None
    )
    cost = step_cost(trace, fit.device)
    assert cost.step.forward == fit.device.within(trace).seconds(one)
    assert fit.device.within(trace).moved == one.read + one.written


def test_it_is_the_same_after_a_file(fit):
    again = read_fitted(json.loads(json.dumps(fit.device.to_json())), "here")
    for size in (16, 100, 700):
        assert again.seconds(product(size, size, size)) == pytest.approx(
            fit.device.seconds(product(size, size, size)), rel=1e-4
        )
    assert again.spread == fit.device.spread


def test_measurements_above_the_peak_are_left_out_and_too_many_are_refused():
    def faster(one, many):
        timed = tuple(
            TimedOperator(t.operator, t.operator.flops / LIMITS.flops / 2 if place < many else t.seconds, 0.0)
            for place, t in enumerate(one.operators)
        )
        return replace(one, operators=timed)

    networks = [network(number) for number in range(6)]
    some = fitted([faster(one, 1 if place == 0 else 0) for place, one in enumerate(networks)])
    assert some.found.dropped == 1
    with pytest.raises(RunFailed, match="measurements are impossible"):
        fitted([faster(one, 12) for one in networks])


def narrow(curve):
    """As of a paceline that looked at fewer sizes of an operator."""
    for row in (curve["scales"], *curve["points"]):
        row.pop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("curves"), "missing required field `curves`"),
        (lambda d: d.update(peak=-1.0), "at `\\$.peak`"),
        (lambda d: d.update(peak=float("nan")), "at `\\$.peak`"),
        (lambda d: d.update(spread=-0.1), ">= 0"),
        (lambda d: d.pop("doubts"), "doubts must be of all of its kinds"),
        (lambda d: d["doubts"].pop("product"), "doubts must be of all of its kinds"),
        (lambda d: d["overheads"].pop("apply"), "overheads"),
        (lambda d: d["curves"]["mm"]["weights"].pop(), "do not fit together"),
        (lambda d: d["curves"]["mm"].update(points=[]), "do not fit together"),
        (lambda d: d["curves"]["mm"]["weights"].__setitem__(0, float("inf")), "not finite"),
        (lambda d: d.update(limits=[1, 2]), "cannot be used"),
        (lambda d: d.update(peak=10**400), "out of range"),
        (lambda d: d["curves"]["mm"].update(variance=10**400), "out of range"),
        (lambda d: narrow(d["curves"]["mm"]), "its curve of 'mm' has 4 dimensions and needs 5"),
        (lambda d: narrow(d["kinds"]["product"]), "its curve of 'product' has 4 dimensions and needs 5"),
    ],
)
def test_a_damaged_document_is_refused_in_a_sentence(fit, change, words):
    document = json.loads(json.dumps(fit.device.to_json()))
    change(document)
    with pytest.raises(UsageError, match=words) as refused:
        read_fitted(document, "profile.json")
    assert "profile.json" in str(refused.value)


def test_the_error_of_a_left_out_point_is_what_leaving_it_out_gives():
    random = np.random.default_rng(1)
    points = np.round(random.uniform(0, 8, (14, 2)), 2)
    values = np.sin(points[:, 0]) + 0.1 * random.normal(size=14)
    scales = np.array([2.0, 4.0])
    choice = best_smoothness(points, values, scales)
    _, errors = fit_curve(points, values, scales, choice)
    for place in range(14):
        others = np.arange(14) != place
        without, _ = fit_curve(points[others], values[others], scales, choice)
        wide = FittedCurve(
            np.vstack([without.points, points[place]]),
            np.append(without.weights, 0.0),
            without.scales,
            without.variance,
        )  # the point itself, without weight: the curve may then reach as far as it
        assert values[place] - wide([points[place]])[0] == pytest.approx(errors[place], abs=1e-6)


def test_smoothness_is_chosen_by_what_is_left_out():
    random = np.random.default_rng(2)
    points = random.uniform(0, 8, (60, 1))
    noisy = random.normal(size=60)
    assert best_smoothness(points, noisy, np.array([2.0])).noise == max(NOISES)
    assert best_smoothness(points, np.sin(points[:, 0]), np.array([2.0])).noise == min(NOISES)


def test_an_overhead_that_takes_time_back_leaves_no_negative_time():
    device = FittedDevice(
        limits=LIMITS,
        peak=LIMITS.flops,
        curves={},
        kinds={},
        overheads={phase: Overhead(call=-1.0) for phase in ("forward", "backward", "apply")},
        spread=0.1,
    )
    assert device.seconds(product(1, 1, 1)) > 0

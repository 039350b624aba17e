"""From measured networks to a device model: curves, overheads, and its error on networks that it has not seen."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import NamedTuple, get_args

import numpy as np

from paceline.costs import fitted
from paceline.costs.fitted import DevicePeaks, bytes_moved, curve_name, features, logarithm, scales
from paceline.costs.trace.operator import Operator, OperatorKind, Phase
from paceline.errors import RunFailed
from paceline.studies.calibrate.measure import PACE, MeasuredNetwork, TimedOperator

MOST_POINTS = {"convolution": 1100, "product": 300}
USUAL_POINTS = 60
MOST_CHOSEN = 300
FEWEST_POINTS = 3
"""Of an operator that gets a curve of its own: few tell its rate, and the roofline how its time grows."""
FEWEST_CHOSEN = 16
FEW = fitted.Smoothness(noise=0.1)
MARGIN = 1.15
"""How far above the measured peak an operator may be before its measurement is called impossible."""
FEWEST_OPERATORS = 6
"""Of a kind, from which the error of one that was never measured is estimated."""
ODD = 1.0
"""Logarithm of the factor by which a call may be off the curve before it counts less."""
FOLDS = 5
RATED: tuple[OperatorKind, ...] = ("convolution", "product", "attention", "recurrence")
TYPICAL = 1e-3
"""Seconds of a call that is measured as exactly as most."""


class CurvePoint(NamedTuple):
    """A measured call, on a machine at its usual pace and in memory that is in use already."""

    operator: Operator
    seconds: float
    network: int
    moved: float


Named = Mapping[OperatorKind, Mapping[str, list[CurvePoint]]]


@dataclass(frozen=True, kw_only=True)
class DeviceFit:
    """What a device model is fitted to, and its errors: shares, each as the median and the 90th percentile."""

    threads: int = 1
    networks: int
    layers: int
    operators: int
    dropped: int
    flops: float
    bandwidth: float
    residuals: Mapping[OperatorKind, tuple[float, float]]
    rates: Mapping[OperatorKind, tuple[float, float]]
    """Operations a second, the 10th and the 98th percentile."""
    steps: tuple[float, float]
    """Errors of whole steps of networks that were left out of the fit."""
    spread: float
    """Standard deviation of the logarithm of (measured / predicted) of these."""
    disturbed: str = ""
    """What else computed meanwhile, in a sentence; empty where nothing did."""


def fit_device(
    networks: Sequence[MeasuredNetwork], layers: Sequence[MeasuredNetwork], limits: DevicePeaks, page: float
) -> tuple[fitted.FittedDevice, DeviceFit]:
    measured = _at_usual_pace([*networks, *layers])
    points, dropped = _points(measured, limits, page)
    if not points or dropped > 0.2 * (len(points) + dropped):
        raise RunFailed(
            f"{dropped} of {len(points) + dropped} measurements are impossible (faster than the measured peak of "
            f"{limits.flops / 1e9:.0f} GFLOP/s, or no time at all); the machine is too busy: calibrate again"
        )
    off = step_errors(measured, limits, page)
    device, missed = _fit(measured, points, limits, page)
    named = _named(points)
    device = replace(device, spread=_root_mean_square(off), doubts=_left_out_errors(named, limits), _known={})
    found = DeviceFit(
        networks=len(networks),
        layers=len(layers),
        operators=sum(len(one.operators) for one in measured),
        dropped=dropped,
        flops=limits.flops,
        bandwidth=limits.bandwidth,
        residuals={kind: _shares(errors) for kind, errors in missed.items()},
        rates={
            kind: _quantiles([one.operator.flops / one.seconds for some in found.values() for one in some])
            for kind, found in named.items()
            if kind in RATED
        },
        steps=_shares(off),
        spread=device.spread,
    )
    return device, found


def _at_usual_pace(measured: Sequence[MeasuredNetwork]) -> list[MeasuredNetwork]:
    usual, found = median(one.pace for one in measured), []
    for one in measured:
        factor = (usual / one.pace) ** PACE
        operators = tuple(replace(timed, seconds=timed.seconds * factor) for timed in one.operators)
        found.append(replace(one, operators=operators, step=one.step and one.step * factor, pace=usual))
    return found


def _points(
    measured: Iterable[MeasuredNetwork], limits: DevicePeaks, page: float
) -> tuple[list[CurvePoint], int]:
    """One for calls of the same sizes in one step, of which a recurrent layer makes hundreds; and how many are none."""
    points, dropped = [], 0
    for index, one in enumerate(measured):
        moved = bytes_moved(timed.operator for timed in one.operators)
        alike: dict[Operator, list[TimedOperator]] = defaultdict(list)
        for timed in one.operators:
            alike[replace(timed.operator, module="")].append(timed)
        for operator, calls in alike.items():
            seconds, faults = median(call.seconds for call in calls), median(call.faults for call in calls)
            # First touches are priced apart; what is left is at least some of it.
            seconds = max(seconds - faults * page, 0.3 * seconds)
            if seconds <= 0 or operator.flops > MARGIN * limits.flops * seconds:
                dropped += 1
            else:
                points.append(CurvePoint(operator, seconds, index, moved))
    return points, dropped


def _named(points: Iterable[CurvePoint]) -> Named:
    kinds: dict[OperatorKind, dict[str, list[CurvePoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        kinds[point.operator.kind][curve_name(point.operator)].append(point)
    return {kind: kinds[kind] for kind in get_args(OperatorKind) if kind in kinds}


def _fit(
    measured: Sequence[MeasuredNetwork], points: Iterable[CurvePoint], limits: DevicePeaks, page: float
) -> tuple[fitted.FittedDevice, dict[OperatorKind, list[float]]]:
    """The device by these networks and their calls; and by kind the errors of curves on what they have not seen."""
    curves: dict[str, fitted.FittedCurve] = {}
    missed: dict[OperatorKind, list[float]] = defaultdict(list)
    named = _named(points)
    for kind, operators in named.items():
        for name, found in operators.items():
            if len(found) >= FEWEST_POINTS:
                curves[name], errors = _fit_points(_some(found, MOST_POINTS.get(kind, USUAL_POINTS)), limits)
                missed[kind] += errors.tolist()
    device = fitted.FittedDevice(
        limits=limits,
        peak=limits.flops,
        curves=curves,
        kinds={kind: _joint_curve(list(operators.values()), limits) for kind, operators in named.items()},
        overheads={phase: _overhead(measured, phase) for phase in get_args(Phase)},
        fresh=_fresh(measured, page),
        spread=0.0,
    )
    return device, missed


def _fit_points(points: Sequence[CurvePoint], limits: DevicePeaks) -> tuple[fitted.FittedCurve, np.ndarray]:
    places, values, reach = _arrays(points, limits)
    # A call of a few microseconds is measured less exactly than one of milliseconds, and matters less.
    doubts = np.clip((TYPICAL / np.array([point.seconds for point in points])) ** 0.5, 0.25, 4.0)
    some = slice(None, None, -(-len(points) // MOST_CHOSEN))
    few = len(points) < FEWEST_CHOSEN
    choice = FEW if few else fitted.best_smoothness(places[some], values[some], reach, doubts[some])
    _, errors = fitted.fit_curve(places, values, reach, choice, doubts)
    # A call that something interrupted should not bend the curve.
    doubts = np.where(np.abs(errors) > ODD, 10 * doubts, doubts)
    return fitted.fit_curve(places, values, reach, choice, doubts)


def _some(points: list[CurvePoint], most: int) -> list[CurvePoint]:
    if len(points) <= most:
        return points
    weights = np.array([point.seconds for point in points]) ** 0.3
    chosen = np.random.default_rng(0).choice(len(points), most, replace=False, p=weights / weights.sum())
    return [points[place] for place in chosen]


def _arrays(points: Sequence[CurvePoint], limits: DevicePeaks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    places = np.array([features(point.operator, point.moved) for point in points])
    values = np.array([logarithm(point.operator, point.seconds, limits) for point in points])
    return places, values, np.array(scales(points[0].operator.kind))


def _joint_curve(operators: Sequence[Sequence[CurvePoint]], limits: DevicePeaks) -> fitted.FittedCurve:
    random = Random(0)  # noqa: S311
    most = max(2, USUAL_POINTS // len(operators))
    some = [point for found in operators for point in random.sample(found, min(most, len(found)))]
    return fitted.fit_curve(*_arrays(some, limits), FEW)[0]


def _left_out_errors(named: Named, limits: DevicePeaks) -> dict[str, float]:
    """The error of an operator that was never measured: each is predicted by the others of its kind, without it.

    By kind, the standard deviation of the logarithm of (measured / predicted), all calls of an operator taken
    together; under "" that of a whole kind that is predicted by the roofline alone.
    """
    doubts: dict[str, list[float]] = {kind: [] for kind in named}
    levels = []
    for kind, operators in named.items():
        for name, found in operators.items():
            places, values, _ = _arrays(found, limits)
            levels.append(float(values.mean()))
            if others := [other for other_name, other in operators.items() if other_name != name]:
                error = values - _joint_curve(others, limits)(places.tolist())
                doubts[kind].append(float(error.mean()))
    usual = [one for off in doubts.values() for one in off]
    # A few operators of a kind may agree by chance.
    enough = {kind: off if len(off) >= FEWEST_OPERATORS else off + usual for kind, off in doubts.items()}
    return {kind: _root_mean_square(off or levels) for kind, off in {**enough, "": levels}.items()}


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _fresh(measured: Iterable[MeasuredNetwork], page: float) -> fitted.FreshMemory:
    touched, asked = [0.0] * (len(fitted.SIZES) + 1), [0.0] * (len(fitted.SIZES) + 1)
    for timed in (timed for one in measured for timed in one.operators):
        pieces = fitted.results(timed.operator)
        place = bisect_right(fitted.SIZES, max(pieces, default=0.0))  # the largest piece stands for all
        touched[place] += timed.faults * fitted.PAGE if pieces else 0.0
        asked[place] += sum(pieces)
    # A tiny result shares its page with others; a large one is always fresh, and its parts are not all counted above.
    middle = [min(1.0, t / a) if a else 0.0 for t, a in zip(touched[1:-1], asked[1:-1], strict=True)]
    return fitted.FreshMemory(page=page, shares=(0.0, *middle, 1.0))


def _overhead(measured: Sequence[MeasuredNetwork], phase: Phase) -> fitted.Overhead:
    """By least squares of the relative error, small steps counting as much as large ones."""
    rows = []
    for one in measured:
        if one.step is None:
            continue
        calls = [timed for timed in one.operators if timed.operator.phase == phase]
        unrolled = sum(timed.operator.unrolled for timed in calls)
        whole = getattr(one.step, phase)
        rows.append(np.array((sum(timed.seconds for timed in calls), len(calls), unrolled)) / whole)
    table = np.array(rows)
    weights = np.ones(len(table))
    for _ in range(10):  # a step that was disturbed should not count: towards the median
        ratio, call, unrolled_call = np.linalg.lstsq(table * weights[:, None], weights, rcond=None)[0]
        weights = 1 / np.sqrt(0.02 + np.abs(table @ (ratio, call, unrolled_call) - 1))
    return fitted.Overhead(
        ratio=float(np.clip(ratio, 0.8, 1.25)), call=float(call), unrolled=float(unrolled_call)
    )


def step_errors(measured: Sequence[MeasuredNetwork], limits: DevicePeaks, page: float) -> list[float]:
    """The logarithm of (predicted / measured) of each network's step, by a device that has not seen it.

    All is fitted anew without a fifth of the networks, whose steps are then predicted: curves and how smooth they are,
    overheads, and how much memory is fresh. Times are those at the machine's usual pace.
    """
    off = []
    points, _ = _points(measured, limits, page)
    for fold in range(FOLDS):
        others = [one for place, one in enumerate(measured) if place % FOLDS != fold]
        seen = [point for point in points if point.network % FOLDS != fold]
        blind, _ = _fit(others, seen, limits, page)
        for one in measured[fold::FOLDS]:
            if one.step is None:
                continue
            operators = [timed.operator for timed in one.operators]
            there = replace(blind, moved=bytes_moved(operators), _known={})
            predicted = sum(map(there.seconds, operators))
            off.append(float(np.log(predicted / one.step.total)))
    return off


def _shares(logarithms: Sequence[float]) -> tuple[float, float]:
    shares = np.abs(np.expm1(logarithms))
    return float(np.median(shares)), float(np.quantile(shares, 0.9))


def _quantiles(rates: Sequence[float]) -> tuple[float, float]:
    return float(np.quantile(rates, 0.1)), float(np.quantile(rates, 0.98))

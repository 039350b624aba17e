"""From one worker's times and a single point of more, the rest of a table of measured epochs.

T(n, b) = T(1, b)/n + steps x communication of n. Communication has one unknown, t, the time in which
one worker's gradients cross one link; a collective's closed form says how many times t it takes among n, and the
single point says how long t is. One point cannot tell which collective it was: that is stated, or all are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from paceline.costs.paleo.model import SCHEMES
from paceline.errors import UsageError, unknown
from paceline.studies.calibrate.measured import Measured
from paceline.studies.calibrate.table_fit import Foretold, Point, TableFit

TRANSFERS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        **SCHEMES,
        "ring": lambda workers: 2 * (workers - 1) / workers,
    }
)
"""Collective to how many times one worker's gradients cross the busiest link, one after the other."""


def fit_table(
    measured: Measured,
    *,
    start: Point | None = None,
    collective: str | None = None,
    predict: Sequence[Point] = (),
) -> list[TableFit]:
    """Fit each collective, or the one that is named, to one point; the one that suits the others best comes first.

    ``start`` is the point that is fitted to; where it is not given, the one with the most workers and the middle
    batch. ``predict`` names further points, each at a batch that one worker was measured with. A UsageError says why a
    table cannot be fitted.
    """
    if collective is not None and collective not in TRANSFERS:
        raise unknown("collective", collective, TRANSFERS)
    first = _start(measured, start)
    rest = measured.communicate(first)
    if not rest > 0:
        raise UsageError(
            f"{first} took {measured.epochs[first]:g} s, no longer than 1/{first.workers} of one worker's "
            f"{measured.alone(first.batch):g} s: nothing is left for communication, so there is nothing to fit; "
            "choose another point"
        )
    others = sorted({*measured.together, *predict} - {first})
    _check_known(measured, others)
    names = TRANSFERS if collective is None else (collective,)
    fits = [_fit(measured, name, first, rest, others) for name in names]
    return sorted(fits, key=lambda fit: fit.spread or 0.0)


def _start(measured: Measured, start: Point | None) -> Point:
    """The point to begin with."""
    together = measured.together
    if not together:
        raise UsageError("the table has no point of more than one worker; a fit needs one, such as 2x128")
    if start is None:
        most = [point for point in together if point.workers == together[-1].workers]
        return most[len(most) // 2]
    if start.workers < 2:
        raise UsageError(f"{start} says nothing about communication; choose one of {_list(together)}")
    if start not in measured.epochs:
        raise UsageError(f"{start} was not measured; choose one of {_list(together)}")
    return start


def _check_known(measured: Measured, points: Sequence[Point]) -> None:
    for point in points:
        if Point(1, point.batch) not in measured.epochs:
            known = sorted(one.batch for one in measured.epochs if one.workers == 1)
            raise UsageError(
                f"{point} cannot be predicted: one worker was not measured at batch {point.batch}, only at "
                f"{', '.join(map(str, known))}"
            )


def _fit(measured: Measured, name: str, first: Point, rest: float, others: Sequence[Point]) -> TableFit:
    transfers = TRANSFERS[name]
    transfer = rest / transfers(first.workers)
    return TableFit(
        collective=name,
        start=first,
        transfer=transfer,
        rate=4 * measured.parameters / transfer,
        points=tuple(_foretell(measured, point, transfer * transfers(point.workers)) for point in others),
    )


def _foretell(measured: Measured, point: Point, communicate: float) -> Foretold:
    seconds = measured.compute(point) + measured.steps(point) * communicate
    return Foretold(point=point, seconds=seconds, measured=measured.epochs.get(point))


def _list(points: Sequence[Point]) -> str:
    return ", ".join(map(str, points))

"""Accuracy against simulated time, bytes and samples, as one picture."""

import math
from collections.abc import Callable, Sequence

from paceline.reports.axes import Axis, LinearAxis, tick_label
from paceline.reports.line_chart import Curve, Panel, line_chart
from paceline.reports.text import counted, percent
from paceline.studies.convergence.result import ConvergenceResult, ConvergenceRow, MedianEvaluation
from paceline.units import show_bytes, show_seconds

BELOW_TARGET = 0.15
"""How much of the way up to the target is shown at least."""
FAR = 8.0
"""How many times as far the longest run goes as the shortest before an axis is logarithmic."""

CurveFigure = Callable[[MedianEvaluation], float]


def panels(result: ConvergenceResult) -> tuple[Panel, ...]:
    """A panel a quantity; a curve a pair with a run that did not fail, in the order of the table."""
    rows = [row for row in result.rows if row.curve]
    up = _accuracies(result, rows)

    def panel(label: str, figure: CurveFigure, tick: Callable[[float], str]) -> Panel:
        return Panel(
            label=label,
            across=_across(rows, figure, up.low),
            up=up,
            across_tick=lambda value: tick(value) if value else "0",
            up_tick=percent,
            curves=tuple(_curve(result, row, figure) for row in rows),
            level=result.target,
        )

    return (
        panel("simulated time", lambda point: point.seconds, show_seconds),
        panel("sent by all workers and servers", lambda point: point.sent, show_bytes),
        panel("samples of all workers", lambda point: point.samples, tick_label),
    )


def _accuracies(result: ConvergenceResult, rows: Sequence[ConvergenceRow]) -> Axis:
    """From below the target, and below what any pair ends at, to the highest of all."""
    ends = [row.curve[-1].low for row in rows]
    low = max(0.0, min([result.target - BELOW_TARGET, *(end - 0.02 for end in ends)]))
    high = min(1.0, max([result.target, *(point.high for row in rows for point in row.curve)]) + 0.005)
    return LinearAxis(math.floor(20 * low) / 20, high)


def _across(rows: Sequence[ConvergenceRow], figure: CurveFigure, floor: float) -> Axis:
    """Linear from 0; where curves end far apart, logarithmic from the first point above the floor."""
    ends = [figure(row.curve[-1]) for row in rows]
    starts = [figure(point) for row in rows for point in _drawn(row, figure) if point.high >= floor]
    if ends and max(ends) > FAR * min(ends) > 0:
        return Axis.around([min(starts), max(ends)])
    return LinearAxis(0.0, max(ends, default=0.0) or 1.0)


def _drawn(row: ConvergenceRow, figure: CurveFigure) -> list[MedianEvaluation]:
    """Without evaluations before the first exchange: no bytes have no place on a logarithmic axis."""
    return [point for point in row.curve if figure(point) > 0]


def _curve(result: ConvergenceResult, row: ConvergenceRow, figure: CurveFigure) -> Curve:
    drawn = _drawn(row, figure)
    return Curve(
        name=str(row.pair),
        points=tuple((figure(point), point.accuracy) for point in drawn),
        band=tuple((point.low, point.high) for point in drawn) if row.runs > 1 else (),
        colour=result.study.pairs.index(row.pair),
    )


def picture(result: ConvergenceResult) -> str:
    """An SVG file, no scripts, light or dark as the reader prefers."""
    seeds, workers = len(result.study.seeds), result.study.settings.workers
    spread = f"median of {seeds} seeds, shaded from the lowest to the highest" if seeds > 1 else "one seed"
    title = f"{result.job}, {counted(workers, 'worker')}: test accuracy"
    subtitle = f"{spread}; dashed: {percent(result.target)}; {result.study.cluster}"
    return line_chart(title, subtitle, panels(result))

"""A study of convergence as people and programs read it: who reaches the target first, the table, the picture."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from typing import Any

from paceline.codecs import NO_CODEC
from paceline.records.files import to_document
from paceline.reports.line_chart import Curve, Panel, line_chart
from paceline.reports.svg import Axis, LinearAxis, tick_label
from paceline.reports.text import aligned, bar, counted, percent
from paceline.studies.convergence.result import (
    SCHEMA,
    ConvergenceResult,
    ConvergenceRow,
    MedianEvaluation,
)
from paceline.studies.grid import Spread
from paceline.units import show_bytes, show_seconds

ALIKE = 0.02
"""How little two figures differ, as a part, that neither is called the smaller."""
BAR = 16
BELOW_TARGET = 0.15
"""How much of the way up to the target is shown at least."""
FAR = 8.0
"""How many times as far the longest run goes as the shortest before an axis is logarithmic."""

RowFigure = Callable[[ConvergenceRow], float]
CurveFigure = Callable[[MedianEvaluation], float]


def answer(result: ConvergenceResult) -> str:
    """One or two sentences."""
    reached = [row for row in result.rows if row.on_target]
    if not reached:
        return _nobody(result)
    first, target = reached[0], percent(result.target)
    if len(result.rows) == 1:
        return f"{first.pair} reaches {target} after {_time(first)}."
    text = f"{first.pair} reaches {target} first: {_time(first)}{_compared(result, first)}"
    return "; ".join([text, *_others(reached)]) + "."


def _time(row: ConvergenceRow) -> str:
    middle, low, high = row.seconds.median, row.seconds.low, row.seconds.high
    if row.runs == 1:
        return show_seconds(middle)
    if high == inf:
        return f"{show_seconds(middle)} ({row.reached} of {row.runs} seeds reach it)"
    return f"{show_seconds(middle)} ({show_seconds(low)} to {show_seconds(high)} over {row.runs} seeds)"


def _compared(result: ConvergenceResult, first: ConvergenceRow) -> str:
    """With the first pair of the grid, or, if that is the winner, with the second to reach the target."""
    other = result.baseline if result.baseline is not first else result.rows[1]
    if not other.on_target:
        return f"; {other.pair} does not reach it"
    times = other.seconds.median / first.seconds.median
    bytes_too = _share(first.sent.median, other.sent.median)
    faster = "" if times < 1 + ALIKE else f"{times:.{3 if times < 1.1 else 2}g} times "
    return f", {faster}as fast as {other.pair} and with {bytes_too}"


def _share(sent: float, other: float) -> str:
    ratio = sent / other if other else 1.0
    if not sent and other:
        return "none of its bytes"
    if abs(ratio - 1) <= ALIKE:
        return "as many bytes"
    if ratio > 1:
        return f"{ratio:.2g} times its bytes"
    return f"1/{1 / ratio:.2g} of its bytes" if ratio < 0.55 else f"{100 * ratio:.0f} % of its bytes"


def _others(reached: list[ConvergenceRow]) -> list[str]:
    """Who needs the fewest bytes and samples, where that is not the fastest."""
    figures: dict[str, RowFigure] = {
        "bytes": lambda row: row.sent.median,
        "samples": lambda row: row.samples.median,
    }
    found = [(_fewest(reached, figure), what) for what, figure in figures.items()]
    fewest = [(str(row.pair), what) for row, what in found if row is not reached[0]]
    return [
        f"{pair} needs the fewest {' and '.join(what for _, what in whats)}"
        for pair, whats in groupby(fewest, key=lambda one: one[0])
    ]


def _fewest(reached: list[ConvergenceRow], figure: RowFigure) -> ConvergenceRow:
    """The first of those that are about as low as the lowest."""
    least = min(map(figure, reached))
    return next(row for row in reached if figure(row) <= least * (1 + ALIKE))


def _nobody(result: ConvergenceResult) -> str:
    best = max(result.rows, key=lambda row: row.best)
    some = [row for row in result.rows if row.reached]
    told = f"Nothing reaches {percent(result.target)}"
    if some:
        told += " in the median over seeds"
    if best.final is None:
        return f"{told}: every run failed, the best, {best.pair}, after {100 * best.best:.2f} %."
    return (
        f"{told}: the best, {best.pair}, comes to {100 * best.best:.2f} % and ends at {100 * best.final.median:.2f} %; "
        "train for longer, or lower the target."
    )


def header(result: ConvergenceResult) -> list[str]:
    study = result.study
    settings = study.settings
    length = counted(settings.iterations, "iteration") if settings.iterations else ""
    length = length or counted(settings.epochs or 0, "epoch")
    usual = result.first if result.baseline.final else "the best"
    chosen = "" if result.chosen else f" (one point below what {usual} comes to, as no target was given)"
    return [
        f"{result.job}, {counted(settings.workers, 'worker')}, {length}, {counted(len(study.seeds), 'seed')}; "
        f"{study.cluster}; simulated time, true gradients",
        f"target {percent(result.target)}{chosen}; median over seeds (low .. high)",
    ]


TableCells = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""The titles of a table, and its rows."""


def table_cells(result: ConvergenceResult) -> TableCells:
    """A row a pair, by time to the target."""
    codecs = any(row.pair.codec != NO_CODEC for row in result.rows)
    titles = ["strategy", *(["codec"] if codecs else []), "reached", "time", "low .. high", "sent"]
    titles += ["samples", "final %", "low .. high "]
    rows = []
    for row in result.rows:
        names = [row.pair.strategy, *([row.pair.codec] if codecs else [])]
        rows.append((*names, f"{row.reached}/{row.runs}", *_to_target(row), *_final(row.final)))
    return tuple(titles), tuple(rows)


def table(result: ConvergenceResult, blocks: bool = True) -> list[str]:
    """The same for a terminal, with a bar for the time."""
    lines = aligned(*table_cells(result), left=("strategy", "codec"))
    longest = max((row.seconds.median for row in result.rows if row.on_target), default=1.0)
    wide = max(map(len, lines))
    bars = [bar(row.seconds.median / longest, BAR, blocks) if row.on_target else "" for row in result.rows]
    drawn = [f"{line:<{wide}}  {one}".rstrip() for line, one in zip(lines[1:], bars, strict=True)]
    return [lines[0], *drawn]


def _to_target(row: ConvergenceRow) -> list[str]:
    if not row.on_target:
        return ["failed" if row.failures else "never", "", "", ""]
    high = "never" if row.seconds.high == inf else show_seconds(row.seconds.high)
    spread = f"{show_seconds(row.seconds.low)} .. {high}" if row.runs > 1 else ""
    return [
        show_seconds(row.seconds.median),
        spread,
        show_bytes(row.sent.median),
        f"{row.samples.median:,.0f}",
    ]


def _final(final: Spread | None) -> list[str]:
    if final is None:
        return ["-", ""]
    spread = f"{100 * final.low:.2f} .. {100 * final.high:.2f}" if final.low < final.high else ""
    return [f"{100 * final.median:.2f}", spread]


def text_lines(result: ConvergenceResult, blocks: bool = True) -> list[str]:
    failures = [f"{row.pair}, {failure}" for row in result.rows for failure in row.failures]
    broken = [f"{one}; it is run again next time" for one in result.broken]
    return [answer(result), "", *header(result), "", *table(result, blocks), *failures, *broken]


def document(result: ConvergenceResult) -> dict[str, Any]:
    """What is infinite, the time to a target that was not reached, becomes null when it is written."""
    rows = [
        {
            "strategy": row.pair.strategy,
            "codec": row.pair.codec,
            "on_target": row.on_target,
            **{name: value for name, value in vars(row).items() if name != "pair"},
        }
        for row in result.rows
    ]
    return {
        "schema": SCHEMA,
        "answer": answer(result),
        "job": result.job,
        "target": result.target,
        "target_given": result.chosen,
        "first": to_document(result.first),
        "study": to_document(result.study),
        "rows": rows,
        "left_out": result.left_out,
        "broken": result.broken,
    }


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

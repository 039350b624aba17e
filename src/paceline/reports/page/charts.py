"""The charts of the report as Altair specifications, without their data. Colours are names that the page resolves."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from paceline.reports.page.document import LegendEntry
from paceline.reports.page.palette import PARTS, css_variable, part_colour, series_colour, series_dash
from paceline.reports.svg import DASHES

HEIGHT = 240
ROW = 34
"""Pixels of a bar and the space around it."""
LANE = 14
LANES = ("compute", "communicate", "hidden", "wait")
"""What a rank does at once is drawn in lanes, from the top down."""
DATA = "rows"

Spec = dict[str, Any]


def spec_of(chart: Any) -> Spec:
    """The chart as a document that fills its place on the page, which gives it the rows that it names."""
    sized = chart.properties(width="container", autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    document: Spec = sized.configure(**_look()).to_dict()
    return document


def _look() -> dict[str, Any]:
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "aria": False,
        "view": alt.ViewConfig(stroke=None),
        "axis": alt.AxisConfig(
            labelColor=css_variable("soft"),
            titleColor=css_variable("soft"),
            gridColor=css_variable("line"),
            domainColor=css_variable("line"),
            tickColor=css_variable("line"),
            titleFontWeight="normal",
            labelFontSize=12,
            titleFontSize=12,
            labelOverlap=True,
        ),
    }


def _chart() -> alt.Chart:
    return alt.Chart(alt.NamedData(name=DATA))


def line_chart(
    *,
    x: str,
    x_title: str,
    y: str,
    y_title: str,
    series: Sequence[str],
    percent: bool = False,
    band: tuple[str, str] | None = None,
    from_zero: bool = False,
    dots: bool = True,
    doubling: Sequence[float] = (),
) -> Spec:
    """A line for each value of the field "series", in the order given; ``band`` are the fields of its range.

    ``dots`` mark the points, where they are few. ``doubling`` are all values of x where these grow by factors.
    """
    across = _across(x, x_title) if not doubling else _doubling(x, x_title, doubling)
    shared = {"x": across, "color": _series_colour(series)}
    axis = alt.Axis(format=".0%" if percent else ",~r")
    up = alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=from_zero), axis=axis)
    lines = (
        _chart()
        .mark_line(point=alt.OverlayMarkDef(size=24) if dots else False, strokeWidth=2.2)
        .encode(
            **shared,
            y=up,
            strokeDash=_series_dash(series),
            tooltip=[
                alt.Tooltip("series:N", title="what"),
                alt.Tooltip(f"{x}:Q", title=x_title, format=",.4~g"),
                alt.Tooltip(f"{y}:Q", title=y_title, format=".2%" if percent else ",.4~g"),
            ],
        )
    )
    layers = [lines]
    if band is not None:
        layers.insert(
            0,
            _chart()
            .mark_area(opacity=0.18)
            .encode(**shared, y=alt.Y(f"{band[0]}:Q", title=y_title), y2=band[1]),
        )
    return spec_of(alt.layer(*layers).properties(height=HEIGHT))


def _across(field: str, title: str) -> alt.X:
    """Bytes and samples in thousands and millions; seconds as they are, for "10m" would be read as minutes."""
    axis = alt.Axis(format=",~r" if title.endswith("(s)") else "~s", tickCount=5)
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=False), axis=axis)


def _doubling(field: str, title: str, values: Sequence[float]) -> alt.X:
    """An axis on which each factor of 2 is as wide as any other, with these values marked."""
    scale = alt.Scale(type="log", base=2, nice=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=list(values), format=","))


def marked_line_chart(*, y: str, y_title: str, series: Sequence[str], marks: bool, dots: bool) -> Spec:
    """Lines over the seconds of a run; rows with a field "mark" are upright lines, such as its evaluations.

    ``dots`` mark the points, where they are few: a line of one point would not be seen.
    """
    across = _across("seconds", "time (s)")
    lines = (
        _chart()
        .transform_filter("datum.mark == null")
        .mark_line(point=alt.OverlayMarkDef(size=24) if dots else False, strokeWidth=1.8)
        .encode(
            x=across,
            y=alt.Y(f"{y}:Q", title=y_title, axis=alt.Axis(format="~s")),
            color=_series_colour(series),
            strokeDash=_series_dash(series),
            tooltip=[
                alt.Tooltip("series:N", title="what"),
                alt.Tooltip("seconds:Q", format=",.4~g"),
                alt.Tooltip(f"{y}:Q", title=y_title, format=",.4~g"),
            ],
        )
    )
    if not marks:
        return spec_of(lines.properties(height=HEIGHT - 60))
    rules = (
        _chart()
        .transform_filter("datum.mark != null")
        .mark_rule(opacity=0.5)
        .encode(
            x=across,
            stroke=alt.Stroke(
                "mark:N",
                legend=None,
                scale=alt.Scale(
                    domain=["evaluate", "checkpoint"],
                    range=[part_colour("evaluate"), part_colour("checkpoint")],
                ),
            ),
            strokeDash=alt.StrokeDash(
                "mark:N",
                legend=None,
                scale=alt.Scale(domain=["evaluate", "checkpoint"], range=[[2, 3], [7, 3]]),
            ),
            tooltip=[alt.Tooltip("mark:N", title="what"), alt.Tooltip("seconds:Q", format=",.4~g")],
        )
    )
    both = alt.layer(rules, lines).resolve_scale(strokeDash="independent")
    return spec_of(both.properties(height=HEIGHT - 60))


def breakdown_chart(names: Sequence[str], *, hides: bool) -> Spec:
    """A stacked bar for each of the names, in milliseconds by part; ``hides`` adds a thin bar of what was hidden."""
    rows = alt.Y(
        "of:N", title=None, sort=list(names), axis=alt.Axis(labelLimit=150, ticks=False, domain=False)
    )
    shown = [
        alt.Tooltip("of:N", title="of"),
        alt.Tooltip("part:N"),
        alt.Tooltip("ms:Q", title="ms", format=",.4~g"),
        alt.Tooltip("share:Q", title="share of the step", format=".1%"),
    ]
    across = alt.X(
        "ms:Q", title="ms of a typical step", stack="zero", axis=alt.Axis(format=",~r", tickCount=6)
    )
    bars = (
        _chart()
        .transform_filter("datum.part != 'hidden'")
        .mark_bar(size=ROW - 16, stroke=css_variable("card"), strokeWidth=1)
        .encode(y=rows, x=across, color=_part_colour(), order=alt.Order("order:Q"), tooltip=shown)
    )
    hidden = (
        _chart()
        .transform_filter("datum.part == 'hidden'")
        .mark_bar(size=5, yOffset=(ROW - 16) / 2 + 4)
        .encode(y=rows, x=across, color=_part_colour(), tooltip=shown)
    )
    layers = [bars, hidden] if hides else [bars]
    return spec_of(alt.layer(*layers).properties(height=ROW * max(1, len(names)) + 10))


def timeline_chart(ranks: Sequence[str]) -> Spec:
    """Spans from "from" to "to" in milliseconds, a row a rank, a lane for what runs at once; zooms in time."""
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"])
    spans = (
        _chart()
        .mark_bar(stroke=css_variable("card"), strokeWidth=0.5, clip=True)
        .encode(
            x=alt.X(
                "from:Q",
                title="ms since the first of these steps began",
                scale=alt.Scale(zero=False, nice=False),
                axis=alt.Axis(format=",~r", tickCount=6),
            ),
            x2="to:Q",
            y=alt.Y(
                "rank:N",
                title=None,
                sort=list(ranks),
                scale=alt.Scale(paddingInner=0.22, paddingOuter=0.05),
                axis=alt.Axis(ticks=False, domain=False),
            ),
            yOffset=alt.YOffset("lane:N", sort=list(LANES), scale=alt.Scale(domain=list(LANES))),
            color=_part_colour(),
            tooltip=[
                alt.Tooltip("rank:N"),
                alt.Tooltip("step:Q", format=","),
                alt.Tooltip("part:N"),
                alt.Tooltip("from:Q", title="at ms", format=",.6~g"),
                alt.Tooltip("ms:Q", title="took ms", format=",.4~g"),
            ],
        )
    )
    height = (LANE * len(LANES) + 14) * max(1, len(ranks))
    return spec_of(spans.add_params(zoom).properties(height=height))


def histogram_chart(*, x: str, x_title: str, order: Sequence[str]) -> Spec:
    bars = (
        _chart()
        .mark_bar(color=series_colour(0))
        .encode(
            x=alt.X(f"{x}:N", title=x_title, sort=list(order), axis=alt.Axis(labelAngle=0)),
            y=alt.Y("count:Q", title="gradients", axis=alt.Axis(format="~s", tickMinStep=1)),
            tooltip=[
                alt.Tooltip(f"{x}:N", title=x_title),
                alt.Tooltip("count:Q", format=","),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    return spec_of(bars.properties(height=HEIGHT - 40))


def scaling_chart(*, series: Sequence[str], workers: Sequence[int]) -> Spec:
    """Speed-up by workers with its interval, beside the dotted line of as many times as fast as workers."""
    across = _doubling("workers", "workers", workers)
    up = alt.Y(
        "speed_up:Q",
        title="speed-up over one worker",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(format="~g"),
    )
    ideal = (
        _chart()
        .mark_line(strokeDash=[2, 3], color=css_variable("soft"))
        .encode(x=across, y=alt.Y("workers:Q"))
    )
    lines = (
        _chart()
        .mark_line(point=True, strokeWidth=2.2)
        .encode(
            x=across,
            y=up,
            color=_series_colour(series),
            tooltip=[
                alt.Tooltip("series:N", title="strategy"),
                alt.Tooltip("workers:Q", format=","),
                alt.Tooltip("speed_up:Q", title="speed-up", format=".3~g"),
            ],
        )
    )
    band = (
        _chart()
        .mark_area(opacity=0.16)
        .encode(x=across, y=alt.Y("low:Q"), y2="high:Q", color=_series_colour(series))
    )
    return spec_of(alt.layer(ideal, band, lines).properties(height=HEIGHT + 40))


def bar_chart(*, x: str, x_title: str, names: Sequence[str]) -> Spec:
    """One bar for each of the names in the field "of"."""
    bars = (
        _chart()
        .mark_bar(size=ROW - 16, color=series_colour(0))
        .encode(
            y=alt.Y(
                "of:N", title=None, sort=list(names), axis=alt.Axis(labelLimit=180, ticks=False, domain=False)
            ),
            x=alt.X(f"{x}:Q", title=x_title, axis=alt.Axis(format="~s", tickCount=5)),
            tooltip=[alt.Tooltip("of:N", title="of"), alt.Tooltip(f"{x}:Q", title=x_title, format=",.4~g")],
        )
    )
    return spec_of(bars.properties(height=ROW * max(1, len(names)) + 10))


def _part_colour() -> alt.Color:
    colours = [part_colour(part) for part in PARTS]
    return alt.Color("part:N", legend=None, scale=alt.Scale(domain=list(PARTS), range=colours))


def _series_colour(series: Sequence[str]) -> alt.Color:
    colours = [series_colour(place) for place in range(len(series))]
    return alt.Color("series:N", legend=None, scale=alt.Scale(domain=list(series), range=colours))


def _series_dash(series: Sequence[str]) -> alt.StrokeDash:
    dashes = [series_dash(place) for place in range(len(series))]
    return alt.StrokeDash("series:N", legend=None, scale=alt.Scale(domain=list(series), range=dashes))


def part_legend(rows: Sequence[Mapping[str, Any]]) -> tuple[LegendEntry, ...]:
    """The parts that the rows have, in their order."""
    found = {row["part"] for row in rows}
    named = {"hidden": "hidden communication", "wait": "wait for others"}
    return tuple(
        LegendEntry(name=named.get(part, part), colour=part_colour(part)) for part in PARTS if part in found
    )


def series_legend(series: Sequence[str]) -> tuple[LegendEntry, ...]:
    return tuple(
        LegendEntry(name=name, colour=series_colour(place), line=DASHES[place % len(DASHES)])
        for place, name in enumerate(series)
    )


def mark_legend(rows: Sequence[Mapping[str, Any]]) -> tuple[LegendEntry, ...]:
    found, names = {row.get("mark") for row in rows}, {"evaluate": "evaluation", "checkpoint": "checkpoint"}
    dashes = {"evaluate": "2 3", "checkpoint": "7 3"}
    return tuple(
        LegendEntry(name=names[mark], colour=part_colour(mark), line=dashes[mark])
        for mark in names
        if mark in found
    )

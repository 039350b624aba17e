"""The Pareto front of a plan, time against cost on logarithmic axes: in characters, and as an SVG file."""

from paceline.reports.line_chart import Curve, Mark, Panel, line_chart
from paceline.reports.plan import money, short
from paceline.reports.svg import LIGHT, Axis
from paceline.reports.text import counted
from paceline.studies.plan import TrainingPlan
from paceline.studies.plan.candidates import Candidate
from paceline.units import show_seconds

COLUMNS, LINES = 60, 14
HOUR = 3600
GREY = len(LIGHT) - 1
"""The last of the colours."""
DRAWN = "●◆·─│└"
PLAIN = "o#.-|+"
"""On the front, the first of the table, other candidates, and the lines of the axes."""


def chart_lines(plan: TrainingPlan, *, unicode: bool = True) -> list[str]:
    """Time upwards, cost to the right: the front runs from the fastest, below, to the cheapest, on the left."""
    across, up = _axes(plan)
    front, first, other, dash, bar, corner = tuple(DRAWN if unicode else PLAIN)
    canvas = [[" "] * COLUMNS for _ in range(LINES)]
    marks = [(one, other) for one in plan.candidates]
    marks += [(one, front) for one in plan.front]
    for one, mark in [*marks, (plan.first, first)]:
        line, column = LINES - 1 - round(up.place(one.time) * (LINES - 1)), across.place(one.cost)
        canvas[line][round(column * (COLUMNS - 1))] = mark
    labels = [show_seconds(up.at(1 - line / (LINES - 1))) if line % 4 == 0 else "" for line in range(LINES)]
    labels[-1] = show_seconds(up.low)
    ends = f"{money(across.low)}{money(across.high):>{COLUMNS - len(money(across.low))}}"
    return [
        f"time by cost   {front} Pareto front   {first} row 1   {other} others",
        *(f"{label:>9} {bar}{''.join(cells)}".rstrip() for label, cells in zip(labels, canvas, strict=True)),
        f"{'':10}{corner}{dash * COLUMNS}",
        f"{'':11}{ends}",
    ]


def _axes(plan: TrainingPlan) -> tuple[Axis, Axis]:
    every = plan.candidates
    return Axis.around([one.cost for one in every]), Axis.around([one.time for one in every])


def picture(plan: TrainingPlan) -> str:
    """An SVG file, no scripts, light or dark as the reader prefers; the legend names what is on the front."""
    front, deadline = plan.front, plan.aim.deadline
    times = [edge / HOUR for one in front for edge in (one.time_low, one.time_high)]
    times += [one.time / HOUR for one in plan.candidates]
    costs = [one.cost for one in plan.candidates]
    line = Curve(points=tuple(map(_point, front)), name="Pareto front")
    named = [Curve(points=(_point(one),), name=short(one), colour=at) for at, one in enumerate(front, 1)]
    others = [_mark(one, GREY) for one in plan.candidates if one not in front]
    ranges = [_mark(one, at, one.time_low, one.time_high) for at, one in enumerate(front, 1)]
    panel = Panel(
        label="cost",
        across=Axis.around([min(costs) / 1.05, max(costs) * 1.05]),
        up=Axis.around([*times, *([deadline / HOUR] if deadline else [])]),
        across_tick=money,
        up_tick=lambda hours: f"{hours:g} h",
        curves=(line, *named),
        marks=(*others, *ranges),
        level=deadline / HOUR if deadline else None,
    )
    dashed = f"; dashed: the deadline of {show_seconds(deadline)}" if deadline else ""
    subtitle = f"{plan.name}, {counted(plan.samples, 'sample')}; bars: 80 % interval; grey: others{dashed}"
    return line_chart("Predicted time by cost", subtitle, (panel,))


def _point(one: Candidate) -> tuple[float, float]:
    return one.cost, one.time / HOUR


def _mark(one: Candidate, colour: int, low: float | None = None, high: float | None = None) -> Mark:
    low, high = low or one.time, high or one.time
    return Mark(point=_point(one), low=low / HOUR, high=high / HOUR, colour=colour)

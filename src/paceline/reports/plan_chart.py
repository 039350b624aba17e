"""The Pareto front of a plan, time against cost on logarithmic axes: in characters, and as an SVG file."""

from paceline.reports.line_chart import Curve, Mark, Panel, line_chart
from paceline.reports.plan import heading, money
from paceline.reports.svg import Axis
from paceline.studies.plan import TrainingPlan
from paceline.studies.plan.candidates import Candidate
from paceline.units import show_seconds

COLUMNS, LINES = 60, 14
HOUR = 3600
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
    """An SVG file, no scripts, light or dark as the reader prefers."""
    shown = {*plan.front, *plan.best}
    times = [edge / HOUR for one in shown for edge in (one.time_low, one.time_high)]
    times += [one.time / HOUR for one in plan.candidates]
    costs = [one.cost for one in plan.candidates]
    deadline = None if plan.aim.deadline is None else plan.aim.deadline / HOUR
    up = Axis.around([*times, *([deadline] if deadline else [])])
    others = [_mark(one, 7) for one in plan.candidates if one not in shown]
    ranked = [_mark(one, 1) for one in plan.best if one not in plan.front]
    fronts = [_mark(one, 0, _name(one)) for one in plan.front]
    panel = Panel(
        label="cost",
        across=Axis.around([min(costs) / 1.05, max(costs) * 1.05]),
        up=up,
        across_tick=money,
        up_tick=lambda hours: f"{hours:g} h",
        curves=(Curve(points=tuple((one.cost, one.time / HOUR) for one in plan.front), name="Pareto front"),),
        marks=(*others, *ranked, *fronts),
        level=deadline,
    )
    dashed = "" if deadline is None else f"; dashed: the deadline of {show_seconds(plan.aim.deadline or 0)}"
    subtitle = f"{heading(plan)}; bars: 80 % interval; grey: other ways to train{dashed}"
    return line_chart("Predicted time by cost", subtitle, (panel,))


def _name(one: Candidate) -> str:
    return f"{one.workers} x {one.hardware}"


def _mark(one: Candidate, colour: int, name: str = "") -> Mark:
    low, high = (one.time_low, one.time_high) if name else (one.time, one.time)
    return Mark(point=(one.cost, one.time / HOUR), low=low / HOUR, high=high / HOUR, name=name, colour=colour)

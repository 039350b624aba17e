"""What the charts of runs plot, as rows of numbers, from what their folders hold."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from paceline.records.events import MetricsRow
from paceline.records.spans import StepBreakdown, mean_typical_step
from paceline.reports.page import charts
from paceline.reports.page.document import Figure, FigureTabs
from paceline.reports.page.palette import PARTS
from paceline.reports.page.thinning import evenly, thinned
from paceline.reports.summary import histogram
from paceline.studies.predict.prediction import PredictionRow
from paceline.studies.recorded import RecordedRun
from paceline.units import show_seconds

STEP_PARTS: Mapping[str, str] = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "communicate": "communicate",
    "wait": "wait",
    "apply": "apply",
    "rest": "other",
    "hidden": "hidden",
}
"""The words of the report to the fields of a breakdown; all but the last add up to the step."""
MOST_DOTS = 150
"""Points of a chart that are marked; more would be a thick line."""
MOST_RANKS = 16
"""Bars of one chart; of more ranks, evenly chosen ones are drawn."""
AXES: Mapping[str, tuple[str, str]] = {
    "time": ("seconds", "time (s)"),
    "samples": ("samples", "samples, all workers"),
    "bytes": ("bytes", "bytes sent for training, all workers"),
}

FigureRows = tuple[dict[str, Any], ...]


def learning_tabs(runs: Sequence[RecordedRun], names: Sequence[str]) -> FigureTabs | None:
    """Loss and accuracy against time, samples and bytes; None where nothing was evaluated."""
    losses, scores = loss_rows(runs, names), accuracy_rows(runs, names)
    if not losses:
        return None
    tabs = {}
    for title, (field, label) in AXES.items():
        pair = [_learning("loss", losses, title, field, label)]
        if scores:
            pair.append(_learning("accuracy", scores, title, field, label))
        tabs[f"against {title}"] = tuple(pair)
    return FigureTabs(name="learning", label="What the loss and the accuracy are drawn against", tabs=tabs)


def _learning(what: str, rows: FigureRows, title: str, field: str, label: str) -> Figure:
    series = list(dict.fromkeys(row["series"] for row in rows))
    about = {
        "time": "A point for each evaluation, at the run's own clock.",
        "samples": "A point for each evaluation; samples are the run's total by the share of its epochs done.",
        "bytes": "A point for each evaluation; bytes are the run's total by the share of its steps done.",
    }
    better = "Lower is better." if what == "loss" else "Higher is better."
    return Figure(
        name=f"{what}-{title}",
        title=f"{what.capitalize()} against {title}",
        sentence=f"{about[title]} {better}",
        spec=charts.line_chart(
            x=field,
            x_title=label,
            y=what,
            y_title=what,
            series=series,
            percent=what == "accuracy",
            dots=len(rows) <= MOST_DOTS,
        ),
        rows=rows,
        columns={"series": "what", field: label, what: what},
        legend=charts.series_legend(series),
    )


def loss_rows(runs: Sequence[RecordedRun], names: Sequence[str]) -> FigureRows:
    """Training and test loss of one run; of several, the loss on test data, or on training data without them."""
    found: list[dict[str, Any]] = []
    for run, name in zip(runs, names, strict=True):
        tested = any(row.test_loss is not None for row in run.rows)
        kinds = ("test",) if tested and len(runs) > 1 else ("train", "test") if tested else ("train",)
        for kind in kinds:
            series = f"{kind} loss" if len(runs) == 1 else name
            found += _metric_rows(run, series, "loss", partial(_loss, kind))
    return tuple(found)


def _loss(kind: str, row: MetricsRow) -> float | None:
    return row.train_loss if kind == "train" else row.test_loss


def accuracy_rows(runs: Sequence[RecordedRun], names: Sequence[str]) -> FigureRows:
    found: list[dict[str, Any]] = []
    for run, name in zip(runs, names, strict=True):
        series = "accuracy on test data" if len(runs) == 1 else name
        found += _metric_rows(run, series, "accuracy", lambda row: row.metrics.get("accuracy"))
    return tuple(found)


def _metric_rows(run: RecordedRun, series: str, what: str, measure: Any) -> Iterator[dict[str, Any]]:
    known = [row for row in run.rows if measure(row) is not None]
    summary = run.summary
    sent = sum(one.step_sent for one in summary.totals)
    for row in thinned(known, [measure]):
        yield {
            "series": series,
            "step": row.step,
            "seconds": row.seconds,
            "samples": round(summary.samples * row.epoch / summary.epochs) if summary.epochs else 0,
            "bytes": round(sent * row.step / summary.steps) if summary.steps else 0,
            what: measure(row),
        }


def trained(run: RecordedRun) -> dict[int, StepBreakdown]:
    """The typical step of each rank that finished one."""
    return {rank: one.typical for rank, one in enumerate(run.summary.totals) if one.steps}


def predicted(run: RecordedRun) -> PredictionRow | None:
    return None if run.forecast is None else run.forecast.row


def mean_step(run: RecordedRun) -> StepBreakdown:
    return mean_typical_step(run.summary.totals)


def breakdown_rows(steps: Mapping[str, StepBreakdown]) -> FigureRows:
    """A row for each part of each step that took any time."""
    order = {part: place for place, part in enumerate(PARTS)}
    return tuple(
        {
            "of": name,
            "part": part,
            "ms": 1e3 * seconds,
            "share": seconds / step.total if step.total else 0.0,
            "order": order[part],
        }
        for name, step in steps.items()
        for part, field in STEP_PARTS.items()
        if (seconds := getattr(step, field)) > 0
    )


def breakdown_figure(run: RecordedRun) -> Figure | None:
    ranks = trained(run)
    if not any(step.total for step in ranks.values()):
        return None
    chosen = evenly(list(ranks), MOST_RANKS)
    steps = {f"rank {rank}": ranks[rank] for rank in chosen}
    left = f" {len(chosen)} of {len(ranks):,} ranks are drawn." if len(chosen) < len(ranks) else ""
    expected = predicted(run)
    beside = ""
    if expected is not None:
        steps = {"predicted": expected.breakdown, **steps}
        beside = " The first bar is what was predicted before the first step."
    rows = breakdown_rows(steps)
    hides = _hides(rows)
    hidden = " The thin bar is communication hidden behind backward: no part of the sum." if hides else ""
    return Figure(
        name="breakdown",
        title="A typical step of each rank",
        sentence=f"The mean over the middle half of the steps by length, by part.{beside}{hidden}{left}",
        spec=charts.breakdown_chart(list(steps), hides=hides),
        rows=rows,
        columns={"of": "of", "part": "part", "ms": "ms", "share": "share"},
        legend=charts.part_legend(rows),
    )


def runs_breakdown_figure(runs: Sequence[RecordedRun], names: Sequence[str]) -> Figure | None:
    steps = {name: mean_step(run) for run, name in zip(runs, names, strict=True) if mean_step(run).total}
    if not steps:
        return None
    rows = breakdown_rows(steps)
    return Figure(
        name="breakdown",
        title="A typical step of each run",
        sentence="The mean over ranks, by part; a thin bar is communication hidden behind backward.",
        spec=charts.breakdown_chart(list(steps), hides=_hides(rows)),
        rows=rows,
        columns={"of": "run", "part": "part", "ms": "ms", "share": "share"},
        legend=charts.part_legend(rows),
    )


def _hides(rows: FigureRows) -> bool:
    return any(row["part"] == "hidden" for row in rows)


def staleness_figure(run: RecordedRun) -> Figure | None:
    """How many updates each gradient missed, as its first server counted; None without servers."""
    counts = run.summary.servers[0].staleness if run.summary.servers else {}
    if not counts:
        return None
    bins, whole = histogram(counts), sum(counts.values())
    rows = tuple({"staleness": name, "count": many, "share": many / whole} for name, many in bins.items())
    mean = sum(value * many for value, many in counts.items()) / whole
    return Figure(
        name="staleness",
        title="Staleness of gradients",
        sentence=f"How many updates a gradient missed between its read and its own update: {mean:.2g} on average, "
        f"{max(counts):,} at most, over {whole:,} gradients.",
        spec=charts.histogram_chart(x="staleness", x_title="updates missed", order=list(bins)),
        rows=rows,
        columns={"staleness": "updates missed", "count": "gradients", "share": "share"},
    )


def waited_words(run: RecordedRun) -> str:
    """Which rank waited longest, in a sentence; empty where none waited."""
    waits = {rank: one.seconds["wait"] for rank, one in enumerate(run.summary.totals) if one.steps}
    longest = max(waits, key=lambda rank: waits[rank], default=None)
    if longest is None or not waits[longest]:
        return ""
    return f"Rank {longest} waited longest for others: {show_seconds(waits[longest])}."

"""Charts over the time of a run: a few steps span by span, steps over the whole run, and the machine's load."""

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from paceline.records.events import sample_events
from paceline.records.load import SystemSample
from paceline.records.spans import Span, StepRecord
from paceline.records.windows import record_end, record_start, record_step, records_from
from paceline.reports.page import charts
from paceline.reports.page.document import Figure
from paceline.reports.page.run_figures import MOST_DOTS, MOST_RANKS, FigureRows
from paceline.reports.page.thinning import evenly, thinned
from paceline.studies.recorded import RecordedRun
from paceline.units import show_seconds

STEPS = 6
"""Of the first rank, in the timeline."""
LOOKED_AT = 1000
"""Records from the middle of the run on, among which those steps are looked for."""
MOST_SPANS = 3000
"""That a browser draws and moves without delay."""
MOST_MARKS = 12
"""Evaluations and checkpoints over a chart; more would hide it."""
BLOCKS = 64
"""How many places of a run are looked at for the time of its steps."""

LANE_OF = {"communicate": "communicate", "wait": "wait"}


def timeline_figure(run: RecordedRun) -> Figure | None:
    """A few steps from the middle of the run; None where its steps were not recorded."""
    files = run.folder.event_files()
    if not files:
        return None
    ranks = evenly(list(files), MOST_RANKS)
    shown = _middle_steps(run, ranks[0])
    if not shown:
        return None
    rows: FigureRows = ()
    while (
        shown
    ):  # steps of many buckets are many spans: then fewer steps are shown, and of one step fewer ranks
        start, end = record_start(shown[0]), record_end(shown[-1])
        rows = tuple(row for rank in ranks for row in _rank_rows(run, rank, start, end))
        if len(rows) <= MOST_SPANS or len(shown) == len(ranks) == 1:
            break
        if len(shown) > 1:
            shown = shown[: len(shown) // 2]
        else:
            ranks = evenly(ranks, len(ranks) // 2)
    cut = (
        f" Only the first {MOST_SPANS:,} of {len(rows):,} spans are drawn." if len(rows) > MOST_SPANS else ""
    )
    rows = rows[:MOST_SPANS]
    names = [f"rank {rank}" for rank in ranks]
    begun = show_seconds(record_start(shown[0]))
    steps = f"step {shown[0].step:,}" if len(shown) == 1 else f"steps {shown[0].step:,} to {shown[-1].step:,}"
    left = f" {len(ranks)} of {len(files):,} ranks are drawn." if len(ranks) < len(files) else ""
    return Figure(
        name="timeline",
        title=f"A few steps, span by span: {steps}, {begun} into the run",
        sentence="Lanes of a rank from the top: compute, communicate, communication hidden behind it, wait. Turn the "
        f"wheel or use the buttons to zoom, drag to move, point at a span for its length.{left}{cut}",
        spec=charts.timeline_chart(names),
        rows=rows,
        columns={
            "rank": "rank",
            "part": "part",
            "step": "step",
            "from": "from (ms)",
            "to": "to (ms)",
            "ms": "ms",
        },
        legend=charts.part_legend(rows),
        zooms="from",
    )


def _middle_steps(run: RecordedRun, rank: int) -> list[StepRecord]:
    """Steps that follow each other from the middle on, with no evaluation or checkpoint among them if that can be."""
    path, middle = run.folder.events(rank), max(1, run.summary.totals[rank].steps // 2 - STEPS // 2)
    longest: list[StepRecord] = []
    found: list[StepRecord] = []
    for record in islice(records_from(path, record_step, middle), LOOKED_AT):
        found = [*found, record] if record.is_step else []
        longest = max(longest, found, key=len)
        if len(found) == STEPS:
            break
    return longest


def _rank_rows(run: RecordedRun, rank: int, start: float, end: float) -> Iterator[dict[str, Any]]:
    for record in records_from(run.folder.events(rank), record_end, start):
        if record_start(record) >= end:
            return
        for span in record.spans:
            yield from _span_row(rank, record.step, span, LANE_OF.get(span.kind, "compute"), start, end)
        for span in record.hidden:
            yield from _span_row(rank, record.step, span, "hidden", start, end)


def _span_row(
    rank: int, step: int, span: Span, lane: str, start: float, end: float
) -> Iterator[dict[str, Any]]:
    """A span that lies in the window; of one that begins before or ends after it, what is inside."""
    low, high = max(span.start, start), min(span.start + span.length, end)
    if high <= low:
        return
    part = "hidden" if lane == "hidden" else "rest" if span.kind == "other" else span.kind
    yield {
        "rank": f"rank {rank}",
        "step": step,
        "part": part,
        "lane": lane,
        "from": round(1e3 * (low - start), 4),
        "to": round(1e3 * (high - start), 4),
        "ms": 1e3 * span.length,
    }


def pace_figure(run: RecordedRun) -> Figure | None:
    """How long steps took over the run, rank by rank, in windows; None where too few were recorded."""
    files = run.folder.event_files()
    ranks = evenly(list(files), 8)
    rows = tuple(row for rank in ranks for row in pace_rows(run, rank))
    if len({row["seconds"] for row in rows}) < 3:
        return None
    series = [f"rank {rank}" for rank in ranks]
    return Figure(
        name="pace",
        title="Step time over the run",
        sentence=f"Means of the steps that follow each other at {BLOCKS} or fewer places of the run; the first step "
        "of a process is left out.",
        spec=charts.line_chart(
            x="seconds",
            x_title="time (s)",
            y="ms",
            y_title="ms a step",
            series=series,
            from_zero=True,
            dots=len(rows) <= MOST_DOTS,
        ),
        rows=rows,
        columns={"series": "of", "seconds": "time (s)", "ms": "ms a step"},
        legend=charts.series_legend(series),
    )


def pace_rows(run: RecordedRun, rank: int) -> list[dict[str, Any]]:
    """The mean step of each of some blocks of a rank's records, at the block's first step."""
    found = []
    for block in sample_events(run.folder.events(rank), BLOCKS):
        steps = [one for one in block if one.is_step and one.spans and not one.warm_up]
        if steps:
            mean = fmean(record_end(one) - record_start(one) for one in steps)
            found.append({"series": f"rank {rank}", "seconds": record_start(steps[0]), "ms": 1e3 * mean})
    return found


def system_figures(run: RecordedRun) -> tuple[Figure, ...]:
    """CPU, memory and network over the run; none where nothing was sampled, as in a simulation."""
    if not run.samples:
        return ()
    marks = mark_rows(run)
    legend = charts.mark_legend(marks)
    told = f" Upright lines are evaluations and checkpoints{_left_out(run)}." if marks else ""
    return tuple(
        Figure(
            name=f"system-{field}",
            title=title,
            sentence=f"{about}{told}",
            spec=charts.marked_line_chart(
                y=field,
                y_title=unit,
                series=list(dict.fromkeys(row["series"] for row in rows)),
                marks=bool(marks),
                dots=len(rows) <= MOST_DOTS,
            ),
            rows=(*rows, *marks),
            columns={"series": "of", "seconds": "time (s)", field: unit},
            legend=(*charts.series_legend(list(dict.fromkeys(row["series"] for row in rows))), *legend),
        )
        for field, title, unit, about, rows in (
            (
                "cpu",
                "CPU",
                "% of one core",
                "Each worker's use of one core, sampled about once a second.",
                _cpu(run),
            ),
            ("memory", "Memory", "bytes", "Resident memory of each worker.", _memory(run)),
            (
                "network",
                "Network",
                "bytes/s",
                "What the host's interfaces sent and received, loopback included; shared memory is not in it.",
                _network(run.samples),
            ),
        )
    )


def _left_out(run: RecordedRun) -> str:
    known = {"evaluations": len(run.rows), "checkpoints": len(_checkpoint_steps(run))}
    cut = [f"{MOST_MARKS} of {many:,} {what}" for what, many in known.items() if many > MOST_MARKS]
    return f", {' and '.join(cut)} among them" if cut else ""


def _cpu(run: RecordedRun) -> list[dict[str, Any]]:
    return _usage(run, "cpu", lambda worker: worker.cpu_percent)


def _memory(run: RecordedRun) -> list[dict[str, Any]]:
    return _usage(run, "memory", lambda worker: float(worker.memory_bytes))


def _usage(run: RecordedRun, field: str, measure: Any) -> list[dict[str, Any]]:
    """Of up to 8 workers of this host, each a series; its process may have another id after a resume."""
    ranks = {worker["pid"]: f"rank {worker['rank']}" for worker in run.environment.get("workers", ())}
    series: dict[int, list[tuple[float, float]]] = {}
    for sample in run.samples:
        for worker in sample.workers:
            series.setdefault(worker.pid, []).append((sample.time, measure(worker)))
    chosen = evenly(list(series), 8)
    return [
        {"series": ranks.get(pid, f"process {pid}"), "seconds": time, field: value}
        for pid in chosen
        for time, value in thinned(series[pid], [lambda point: point[1]], 160)
    ]


def _network(samples: Sequence[SystemSample]) -> list[dict[str, Any]]:
    sent = thinned(samples, [lambda one: one.sent_per_second])
    received = thinned(samples, [lambda one: one.received_per_second])
    return [
        *({"series": "sent", "seconds": one.time, "network": one.sent_per_second} for one in sent),
        *(
            {"series": "received", "seconds": one.time, "network": one.received_per_second}
            for one in received
        ),
    ]


def mark_rows(run: RecordedRun) -> FigureRows:
    """When the run was evaluated and saved; of more than MOST_MARKS of either, evenly chosen ones."""
    rows = [{"mark": "evaluate", "seconds": row.seconds} for row in evenly(run.rows, MOST_MARKS)]
    return (*rows, *({"mark": "checkpoint", "seconds": at} for at in checkpoint_times(run)))


def checkpoint_times(run: RecordedRun) -> list[float]:
    """When the first rank saved, found in its events around the steps at which that was due."""
    files = run.folder.event_files()
    if not files:
        return []
    found = []
    for step in evenly(_checkpoint_steps(run), MOST_MARKS):
        near = islice(records_from(files[min(files)], record_step, step), 6)
        found += [span.start for one in near for span in one.spans if span.kind == "checkpoint"][:1]
    return sorted(set(found))


def _checkpoint_steps(run: RecordedRun) -> Sequence[int]:
    """At which its cadence made a checkpoint due; the one at its end may lie at another."""
    summary, cadence = run.summary, run.config.settings.checkpoint
    if not summary.epochs or not cadence.count:
        return ()
    every = max(1, cadence.in_steps(round(summary.steps / summary.epochs)))
    return range(every, summary.steps + 1, every)

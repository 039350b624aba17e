"""A sweep as people and programs read it: where more workers pay off, the table, both ways to split an epoch."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, log2
from textwrap import wrap
from typing import Any

from paceline.codecs import NO_CODEC
from paceline.records.files import to_document
from paceline.reports.line_chart import Curve, Mark, Panel, line_chart
from paceline.reports.svg import Axis, LinearAxis
from paceline.reports.text import aligned, counted, ms_digits, percent
from paceline.studies.scaling.result import SCHEMA, SweepResult, SweepRow
from paceline.studies.scaling.study import SweepCell
from paceline.units import show_bytes, show_seconds

ALIKE = 0.02
"""How little faster a cell is that it is called no faster."""
WORTH = 0.1
"""How much faster a batch of twice the size must be to be called worth it."""
MENTIONED = 0.02
"""Of an epoch: smaller parts of a difference are not named."""
WIDTH = 120
LEFT = ("strategy", "codec", "data")
"""Columns of words."""

Column = tuple[str, Callable[[SweepRow], str]]


def answer(result: SweepResult) -> str:
    """A few sentences."""
    if not result.rows:
        return "Nothing was measured."
    answers = {"scaling": _scaling, "batch": _batch, "checkpoint": _checkpoint, "processes": _processes}
    return answers[result.sweep.kind](result)


def _scaling(result: SweepResult) -> str:
    several = result.compared()
    best = max(result.rows, key=lambda row: row.rate.median)
    if not several:
        return f"{best.cell} is fastest: {_rate(best)}; only one worker was measured."
    words = f"{_capital(str(best.cell))}: {_rate(best)}, the fastest of all"
    if best.cell.workers > 1:
        words += f", {best.speed_up:.2f} times one worker's (efficiency {percent(round(best.efficiency, 2))})"
    groups = dict.fromkeys((row.cell.workers, _variant(row.cell)) for row in several)
    return " ".join([f"{words}.", *(_pays(several, *group) for group in groups)])


def _pays(rows: Sequence[SweepRow], workers: int, variant: str) -> str:
    """At which batches this number of workers is faster than one."""
    own = [row for row in rows if (row.cell.workers, _variant(row.cell)) == (workers, variant)]
    name = f"{workers} workers{f' ({variant})' if variant else ''}"
    good = [row for row in own if row.speed_up > 1 + ALIKE]
    if not good:
        most = max(own, key=lambda row: row.speed_up)
        return f"{name} pay off at no batch: {most.speed_up:.2f} times one worker's rate at most."
    if len(good) == len(own):
        low, high = min(row.speed_up for row in good), max(row.speed_up for row in good)
        range_ = f"{low:.2f}" if len(good) == 1 or high - low < 0.005 else f"{low:.2f} to {high:.2f}"
        return f"{name} pay off at every batch measured: {range_} times one worker's rate."
    batches = ", ".join(str(row.cell.batch) for row in good)
    return f"{name} pay off at a batch of {batches} a worker, and not at the others."


def _batch(result: SweepResult) -> str:
    groups: dict[str, list[SweepRow]] = {}
    for row in result.rows:
        groups.setdefault(row.cell.loading, []).append(row)
    return " ".join(
        _largest_batch(rows, f" {loading} data loading" if len(groups) > 1 else "")
        for loading, rows in groups.items()
    )


def _largest_batch(rows: Sequence[SweepRow], among: str) -> str:
    """Up to which batch a larger one pays off; ``among`` says of which cells, where these are not all."""
    best = max(rows, key=lambda row: row.rate.median)
    if len(rows) == 1:
        return f"{_capital(str(best.cell))}: {_rate(best)}; only one batch was measured{among}."
    words = f"{_capital(str(best.cell))}: {_rate(best)}, the most{among or ' of all'}"
    for row, larger in pairwise(rows):
        ratio = larger.rate.median / row.rate.median
        if ratio < (1 + WORTH) ** log2(larger.cell.batch / row.cell.batch):
            gain = 100 * (ratio - 1)
            return (
                f"Larger batches stop paying off at {row.cell.batch}{among}: {larger.cell.batch} gives {gain:+.0f} % "
                f"samples a second. {words}."
            )
    return f"{words}; larger batches paid off up to the largest measured."


def _checkpoint(result: SweepResult) -> str:
    rows = result.compared()
    if not rows:
        return "No cell with checkpoints was measured."
    worst = max(rows, key=_overhead_by_spans)
    each = "; ".join(
        f"every {row.cell.checkpoint}, checkpoints take {_percents(_overhead_by_spans(row))} of the time "
        f"({show_seconds(row.checkpoint)} each, {show_bytes(row.checkpoint_bytes)})"
        for row in rows[:3]
    )
    more = "" if len(rows) <= 3 else f"; at most {_percents(_overhead_by_spans(worst))}"
    return f"{_capital(each)}{more}."


def _processes(result: SweepResult) -> str:
    best = max(result.rows, key=lambda row: row.rate.median)
    if not result.compared():
        return f"{_capital(str(best.cell))}: {_rate(best)}; only one process was measured."
    if best.cell.processes == 1:
        return f"One process has all that the host gives: {_rate(best)}; more side by side are no faster."
    return (
        f"{best.cell.processes} processes side by side give the most: {_rate(best)} of the host, "
        f"{best.speed_up:.2f} times one alone; each computes {best.contention:.2f}x slower."
    )


def _overhead_by_spans(row: SweepRow) -> float:
    """The share of the time of a long run, whose checkpoints are as far apart as their cadence says."""
    spent = row.checkpoint / row.checkpoint_every
    return spent / (row.step.total + spent)


def _rate(row: SweepRow) -> str:
    return f"{row.rate.median:,.0f} samples/s"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _variant(cell: SweepCell) -> str:
    parts = [cell.strategy] if cell.strategy != "all-reduce" else []
    parts += [cell.codec] if cell.codec != NO_CODEC else []
    parts += ["without data loading"] if cell.loading == "without" else []
    return ", ".join(parts)


def header(result: SweepResult) -> str:
    sweep = result.sweep
    backend = sweep.machinery.get("backend") or "usual backend"
    threads = sweep.machinery.get("threads")
    each = f", {counted(threads, 'thread')} a worker" if threads else ""
    scaling = f", {sweep.scaling} scaling" if sweep.kind == "scaling" else ""
    length = f"about {show_seconds(sweep.seconds)} a run" if sweep.seconds else "runs as long as asked"
    steps = "all steps" if sweep.kind == "processes" else "typical steps"
    return (
        f"{sweep.job} ({result.parameters:,} parameters), {sweep.samples:,} samples an epoch{scaling}; "
        f"{backend}{each}; {counted(sweep.repeats, 'repeat')}, {length}; medians of {steps}"
    )


def table_cells(result: SweepResult) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row a cell; columns that say nothing here are left out."""
    digits = ms_digits(min(row.step.total for row in result.rows))

    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:.{digits}f}"

    columns = [*_names(result), *_measured(ms, result), *_kind_columns(result), *_usage()]
    shown = [(title, [show(row) for row in result.rows]) for title, show in columns]
    told = {title: cells for title, cells in shown if any(cells)}
    return list(told), [list(row) for row in zip(*told.values(), strict=True)]


def _names(result: SweepResult) -> list[Column]:
    cells = [row.cell for row in result.rows]
    named: list[tuple[Column, set[Any]]] = [
        (("workers", lambda row: str(row.cell.workers)), {cell.workers for cell in cells}),
        (("processes", lambda row: str(row.cell.processes)), {cell.processes for cell in cells}),
        (("batch", lambda row: str(row.cell.batch)), {0, 1}),
        (("strategy", lambda row: row.cell.strategy), {cell.strategy for cell in cells}),
        (("codec", lambda row: row.cell.codec), {cell.codec for cell in cells}),
        (("data", lambda row: row.cell.loading), {cell.loading for cell in cells}),
        (("checkpoint every", lambda row: str(row.cell.checkpoint)), {cell.checkpoint for cell in cells}),
    ]
    return [column for column, values in named if len(values) > 1]


def _measured(ms: Callable[[float], str], result: SweepResult) -> list[Column]:
    columns: list[Column] = [
        ("step ms", lambda row: ms(row.step.total)),
        ("low .. high", lambda row: f"{ms(row.seconds.low)} .. {ms(row.seconds.high)}"),
        ("predicted ms", lambda row: ms(row.plan.row.step) if row.plan and row.plan.row else ""),
        ("samples/s", lambda row: f"{row.rate.median:,.0f}"),
    ]
    if result.sweep.kind == "checkpoint":  # typical steps are without what is measured
        columns.pop()
    return columns


def _kind_columns(result: SweepResult) -> list[Column]:
    compared = {row.cell for row in result.compared()}

    def predicted(row: SweepRow) -> str:
        known = row.cell in compared and row.plan is not None and row.plan.speed_up is not None
        return f"{row.plan.speed_up:.2f}" if known and row.plan and row.plan.speed_up else ""

    speed_up: list[Column] = [("speed-up", lambda row: f"{row.speed_up:.2f}"), ("predicted", predicted)]
    efficiency: Column = ("efficiency", lambda row: f"{100 * row.efficiency:.0f} %")
    match result.sweep.kind:
        case "scaling":
            return [("epoch", lambda row: show_seconds(row.epoch)), *speed_up, efficiency]
        case "batch":
            return [("us a sample", lambda row: f"{1e6 / row.rate.median:,.1f}"), *speed_up]
        case "processes":
            return [
                ("each", lambda row: f"{row.rate.median / row.cell.processes:,.0f}"),
                *speed_up,
                efficiency,
            ]
        case _:
            return [
                ("checkpoint", lambda row: show_seconds(row.checkpoint) if row.checkpoint else ""),
                ("size", lambda row: show_bytes(row.checkpoint_bytes) if row.checkpoint_bytes else ""),
                ("share by spans", lambda row: _percents(_overhead_by_spans(row)) if row.checkpoint else ""),
                ("by difference", lambda row: _overhead_by_difference(result, row)),
                ("with it, ms a step", lambda row: f"{1e3 * _whole_step(result, row):.3g}"),
            ]


def _overhead_by_difference(result: SweepResult, row: SweepRow) -> str:
    spent = _spent_by_difference(result, row)
    return "" if spent is None else _percents(spent / _whole_step(result, row))


def _spent_by_difference(result: SweepResult, row: SweepRow) -> float | None:
    """Seconds that checkpoints add to a step of a long run, by what one of them adds to these; None without any."""
    base = result.row(result.sweep.base(row.cell))
    if base is None or base is row or not row.checkpoints:
        return None
    return (row.whole - base.whole) / row.checkpoints / row.checkpoint_every


def _whole_step(result: SweepResult, row: SweepRow) -> float:
    """Mean seconds of a step of a long run, checkpoints included."""
    base, spent = result.row(result.sweep.base(row.cell)), _spent_by_difference(result, row)
    return row.whole if base is None or spent is None else base.whole + spent


def _percents(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) >= 0.01 else percent(float(f"{share:.2g}"))


def _usage() -> list[Column]:
    return [
        ("CPU", lambda row: "" if row.cpu_percent is None else f"{row.cpu_percent:.0f} %"),
        ("memory", lambda row: "" if row.memory_bytes is None else show_bytes(row.memory_bytes)),
    ]


BOTH_WAYS = "an epoch, by spans (typical steps) and by the difference to one worker"


def both_ways_cells(result: SweepResult) -> tuple[list[str], list[list[str]]]:
    """Computing and communication of cells with several workers, by spans and as T1/n and Tn - T1/n."""
    titles = [
        "workers",
        "batch",
        "",
        "computing",
        "T1/n",
        "contention",
        "communication",
        "Tn - T1/n",
        "hidden",
    ]
    titles += ["sends", "of the link"]
    cells = [
        [
            str(row.cell.workers),
            str(row.cell.batch),
            _variant(row.cell),
            show_seconds(row.by_spans.compute),
            show_seconds(row.by_difference.compute),
            f"{row.contention:.2f}x",
            show_seconds(row.by_spans.communicate),
            show_seconds(row.by_difference.communicate),
            show_seconds(row.hidden) if row.hidden else "-",
            f"{show_bytes(row.bandwidth)}/s" if row.bandwidth else "-",
            f"{100 * row.bandwidth / row.link:.0f} %" if row.bandwidth and row.link else "-",
        ]
        for row in _with_several(result)
    ]
    return titles, cells


def _with_several(result: SweepResult) -> list[SweepRow]:
    """The rows whose epoch is split both ways."""
    return [row for row in result.rows if row.cell.workers > 1 and result.sweep.kind == "scaling"]


def both_ways_explained(result: SweepResult) -> list[str]:
    """Why the two ways differ, for the cell where they differ most; and what the link was measured as."""
    rows = _with_several(result)
    if not rows:
        return []
    sentences = [explain(max(rows, key=lambda one: abs(one.difference.total) / one.epoch))]
    links = sorted({one.plan.link_basis for one in rows if one.plan and one.plan.link and one.bandwidth})
    if links:
        sentences.append(
            "sends: what a worker sends in a step over the time that it communicates, hidden or not, of the worker "
            "that waits least; an all-reduce sends 2 (n-1)/n of the gradients. The link's rate, for an all-reduce of "
            f"that size, is {' or '.join(links)}."
        )
    return sentences


def explain(row: SweepRow) -> str:
    """Why Tn - T1/n is not the communication that spans show."""
    spans, difference = row.by_spans.communicate, row.by_difference.communicate
    parts = [
        (
            row.difference.contention,
            f"computing beside other workers takes {row.contention:.2f} times as long",
        ),
        (row.difference.smaller_batch, "smaller batches take longer to compute for each sample"),
        (row.difference.rest, "what lies between the parts of a step"),
    ]
    named = [
        f"{show_seconds(abs(seconds))} {'less' if seconds < 0 else 'more'}: {why}"
        for seconds, why in parts
        if abs(seconds) >= MENTIONED * row.epoch
    ]
    wait = row.step.wait / (row.step.wait + row.step.communicate or inf)
    hidden = (
        f"; {show_seconds(row.hidden)} of transfers were hidden behind backward, in neither"
        if row.hidden
        else ""
    )
    return (
        f"{row.cell}: Tn - T1/n is {show_seconds(difference)} an epoch, spans show {show_seconds(spans)} of "
        f"communication, of which {100 * wait:.0f} % is waiting for other workers. "
        f"{_capital('; '.join(named)) or 'The two agree'}{hidden}."
    )


def scored(result: SweepResult) -> list[str]:
    """What was predicted, against what was measured."""
    lines = []
    if (error := result.speed_up_error) is not None:
        rows = [row for row in result.compared() if row.error is not None]
        worst = max(rows, key=lambda row: abs(row.error or 0.0))
        lines.append(
            f"predicted before it was measured: speed-up, median error {error:.2f} over "
            f"{counted(len(rows), 'cell')}, at most {abs(worst.error or 0.0):.2f} ({worst.cell})"
        )
    if (rate := result.rate_error) is not None:
        lines.append(f"samples/s of one worker from the machine's profile: median error {100 * rate:.0f} %")
    missing = dict.fromkeys(row.plan.basis for row in result.rows if row.plan and row.plan.rate is None)
    return lines + [f"not predicted: {why}" for why in missing if why]


def outlier_lines(result: SweepResult) -> list[str]:
    """Repeats that are far from the others, and what disturbed the sweep."""
    lines = []
    for one in result.outliers:
        why = one.disturbance or "Nothing else computed meanwhile."
        lines.append(f"outlier: {one.run} took {one.factor:.2f} times the median step of its cell. {why}")
    if result.disturbed:
        lines.append(
            f"other processes computed during {counted(len(result.disturbed), 'run')} of "
            f"{len(result.sweep.runs)}; they count only where all repeats of a cell were disturbed, and times may then "
            "be longer than on an idle machine"
        )
    return lines + [f"{one}; it is measured again next time" for one in result.broken]


def text_lines(result: SweepResult) -> list[str]:
    lines = _wrapped([answer(result)])
    if not result.rows:
        return [*lines, *_wrapped(outlier_lines(result))]
    titles, cells = both_ways_cells(result)
    both = [BOTH_WAYS, *aligned(titles, cells, left=("",)), *_wrapped(both_ways_explained(result))]
    parts = (
        _wrapped([header(result)]),
        aligned(*table_cells(result), left=LEFT),
        both if cells else [],
        _wrapped(scored(result)),
        _wrapped(outlier_lines(result)),
    )
    return [*lines, *(line for part in parts if part for line in ("", *part))]


def _wrapped(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in wrap(sentence, WIDTH)]


def document(result: SweepResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "answer": answer(result),
        "sweep": to_document(result.sweep),
        "parameters": result.parameters,
        "rows": [
            {
                **to_document(row),
                "speed_up": row.speed_up,
                "error": row.error,
                "rate_error": row.rate_error,
            }
            for row in result.rows
        ],
        "speed_up_error": result.speed_up_error,
        "rate_error": result.rate_error,
        "outliers": [{**to_document(one), "disturbance": one.disturbance} for one in result.outliers],
        "disturbed": to_document(result.disturbed),
        "broken": result.broken,
    }


def drawn_over(result: SweepResult) -> str:
    """What the speed-up is drawn over."""
    return "processes" if result.sweep.kind == "processes" else "batch of a worker"


def drawn_place(result: SweepResult, row: SweepRow) -> int:
    return row.cell.processes if result.sweep.kind == "processes" else row.cell.batch


def drawn_rows(result: SweepResult) -> list[SweepRow]:
    """Those whose speed-up is drawn, from left to right; none where there is no curve."""
    rows = list(result.rows) if result.sweep.kind == "processes" else result.compared()
    if result.sweep.kind == "checkpoint" or len({drawn_place(result, row) for row in rows}) < 2:
        return []
    return sorted(rows, key=lambda row: drawn_place(result, row))


def picture(result: SweepResult) -> str | None:
    """An SVG file of the speed-up, with what was predicted as points; None where there is nothing to draw."""
    rows = drawn_rows(result)
    if not rows:
        return None

    def across(row: SweepRow) -> float:
        return drawn_place(result, row)

    groups: dict[str, list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(curve_name(row), []).append(row)
    places = sorted({across(row) for row in rows})
    predicted = [row.plan.speed_up or 0.0 for row in rows if row.plan]
    panel = Panel(
        label=drawn_over(result),
        across=Axis.around(places),
        up=LinearAxis(0.0, 1.05 * max([1.0, *predicted, *(row.speed_up for row in rows)])),
        across_tick=lambda value: f"{value:.0f}",
        up_tick=lambda value: f"{value:g}",
        ticks=tuple(places),
        curves=tuple(
            Curve(name=name, points=tuple((across(row), row.speed_up) for row in own), colour=place)
            for place, (name, own) in enumerate(groups.items())
        ),
        marks=tuple(
            Mark(
                point=(across(row), row.plan.speed_up),
                low=row.plan.speed_up,
                high=row.plan.speed_up,
                colour=place,
            )
            for place, own in enumerate(groups.values())
            for row in own
            if row.plan and row.plan.speed_up
        ),
        level=1.0,
    )
    return line_chart(f"{result.sweep.job}: speed-up", "lines: measured; points: predicted before", [panel])


def curve_name(row: SweepRow) -> str:
    variant = _variant(row.cell)
    return f"{counted(row.cell.workers, 'worker')}{f', {variant}' if variant else ''}"

"""A prediction as people read it: the answer, the table behind it, what follows, and what it all rests on."""

import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from paceline.codecs import NO_CODEC
from paceline.reports.predict.codecs import codec_answers, codec_lines, faster_codec
from paceline.reports.predict.sentences import findings, memory_parts, misfit, typed, verdict
from paceline.reports.text import aligned, counted, ms_digits, percent
from paceline.studies.predict.prediction import ModuleCost, Prediction, PredictionRow
from paceline.units import show_bytes, show_seconds

NOTHING = "-"
UNUSED = " (unused: one worker sends nothing)"
LEAST_SHARE = 0.01
"""Of a step's computing: less in operators that were never measured is not worth a line."""
MOST_NAMED = 5
MODULE_TITLES = ("module", "operators", "GFLOP", "moved", "forward ms", "backward ms", "share")


def text_lines(prediction: Prediction) -> list[str]:
    """All of it, with the modules where they were asked for; the first line is the answer."""
    lines = _paleo_lines(prediction) if prediction.cost_model == "paleo" else _lines(prediction)
    return [*lines, "", *module_lines(prediction.modules)] if prediction.modules else lines


def _lines(prediction: Prediction) -> list[str]:
    short, answer, codec = misfit(prediction), verdict(prediction), _codec(prediction)
    given = [
        *(["enough memory"] if short else []),
        *([codec] if codec != NO_CODEC and prediction.codecs else []),
    ]
    if given:
        answer = f"With {' and '.join(given)}: {answer[0].lower()}{answer[1:]}"
    first = [answer] if short is None else [short, answer]
    follows = []
    for series in prediction.series:
        lines = findings(series) + faster_codec(prediction.codecs, series.strategy, codec)
        whose = [series.strategy] if len(prediction.series) > 1 else []
        if len(prediction.codecs and prediction.codecs[0].steps) > 2:
            whose.append(f"with {codec}" if whose else f"With {codec}")
        if whose and lines:
            lines = [f"{', '.join(whose)}:", *(f"  {line}" for line in lines)]
        follows += lines
    table = [heading(prediction), "", *table_lines(prediction), ""]
    if prediction.codecs:
        first += codec_answers(prediction.codecs)
        table += [*codec_lines(prediction.codecs), ""]
    return [*first, "", *table, *follows, *([""] if follows else []), *_basis(prediction)]


def heading(prediction: Prediction) -> str:
    said, batch, codec = prediction.settings, f"{prediction.batch:,}", _codec(prediction)
    strong = prediction.scaling == "strong"
    usual = {
        "collective": ("native", "collective {}"),
        "servers": (1, "{} servers"),
        "jitter": (0, "jitter {}"),
        "per_host": (1, "{} workers per host"),
        "inside": (None, "{} inside"),
    }
    words = [
        prediction.name,
        counted(prediction.parameters, "parameter"),
        f"a batch of {batch} divided among all workers" if strong else f"batch {batch} per worker",
        *([prediction.series[0].strategy] if len(prediction.series) == 1 else []),
        *([] if codec == NO_CODEC else [f"codec {codec}{'' if prediction.codecs else UNUSED}"]),
        *(text.format(said[name]) for name, (value, text) in usual.items() if said.get(name, value) != value),
    ]
    return ", ".join(words)


def _codec(prediction: Prediction) -> str:
    """The one that rows are of."""
    first: str = next(iter(prediction.settings.get("codecs", ())), NO_CODEC)
    return first


def _basis(prediction: Prediction) -> Iterator[str]:
    basis = prediction.basis
    yield f"Level: {basis.level}. Compute: {basis.compute}."
    if basis.faster_precision is not None:
        name, gain = basis.faster_precision
        narrower = f"with {typed(('precision', name))} one worker computes {gain:.2g}x as fast"
        yield f"Precision: {basis.precision}; {narrower}."
    elif basis.precision:
        yield f"Precision: {basis.precision}."
    memories = [row.memory for series in prediction.series for row in series.rows if row.memory is not None]
    if memories:
        yield f"Memory: {memory_parts(max(memories, key=lambda one: one.total))}."
    yield f"Links: {basis.links}."
    yield f"Interval: {basis.interval}."
    shares = sorted(prediction.unmeasured.items(), key=lambda one: one[1], reverse=True)
    total = sum(share for _, share in shares)
    if total >= LEAST_SHARE:
        named = [f"{name} {percent(round(share, 2))}" for name, share in shares[:MOST_NAMED]]
        yield (
            f"Never measured: {percent(round(total, 2))} of a step's computing is in {len(shares)} operators that the "
            f"profile does not know (most in {', '.join(named)}), which are guessed from others of their kind; the "
            "interval is wider for it. Calibrate again, or correct the profile by a run of this job ('paceline "
            "calibrate record')."
        )


def table_lines(prediction: Prediction) -> list[str]:
    """The table with its titles; times are in milliseconds. What is nothing, or said above, has no column."""
    places = range(len(prediction.workers))
    rows = [(series.strategy, series.rows[place]) for place in places for series in prediction.series]
    digits = ms_digits(min(row.step for _, row in rows))
    cells = [_cells(strategy, row, digits) for strategy, row in rows]
    hidden = {
        "strategy": len(prediction.series) == 1,
        "batch": len({row.batch for _, row in rows}) == 1,
        "fits": all(row.fits for _, row in rows),
    }
    titles = [
        title for title in cells[0] if not hidden.get(title) and any(row[title] != NOTHING for row in cells)
    ]
    return aligned(titles, [[row[title] for title in titles] for row in cells], left=("strategy", "fits"))


def _cells(strategy: str, row: PredictionRow, digits: int) -> dict[str, str]:
    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:,.{digits}f}" if seconds > 0 else NOTHING

    parts, memory, fits = row.breakdown, row.memory, "yes"
    if memory is not None and not memory.fits:
        fits = f"does not fit ({f'batch {memory.largest:,}' if memory.largest else 'no batch'} does)"
    return {
        "strategy": strategy,
        "workers": f"{row.workers:,}",
        "batch": f"{row.batch:,}",
        **{name: ms(getattr(parts, name)) for name in ("data", "forward", "backward", "apply")},
        "comm": ms(parts.communicate + parts.hidden),
        "hidden": ms(parts.hidden),
        "wait": ms(parts.wait),
        "step ms": ms(row.step),
        "80 % interval": " .. ".join(
            f"{1e3 * edge:,.0f}" if edge >= 0.1 else f"{1e3 * edge:#.3g}" for edge in (row.low, row.high)
        ),
        "samples/s": _three(row.rate),
        "speed-up": f"{row.speed_up:,.2f}" if row.speed_up < 100 else f"{row.speed_up:,.0f}",
        "efficiency": percent(round(row.efficiency, 2)),
        "cost/1M": _three(row.cost_million),
        "time": NOTHING if row.finish is None else show_seconds(row.finish),
        "cost": _three(row.cost),
        "memory": NOTHING if memory is None else show_bytes(memory.total),
        "fits": fits,
    }


def _three(amount: float | None) -> str:
    if amount is None:
        return NOTHING
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def module_lines(modules: Sequence[ModuleCost]) -> list[str]:
    rows = []
    for name, kinds, ones in (*((one.module, one.kinds, [one]) for one in modules), ("all", "", modules)):
        flops, moved, forward, backward, share = (
            sum(getattr(one, figure) or 0.0 for one in ones)
            for figure in ("flops", "bytes", "forward", "backward", "share")
        )
        amounts = [f"{flops / 1e9:,.3f}", show_bytes(moved)] if ones[0].flops is not None else [NOTHING] * 2
        rows.append([name, kinds, *amounts, *_ms(forward, backward), f"{100 * share:.1f} %"])
    return aligned(MODULE_TITLES, rows, left=MODULE_TITLES[:2])


def _paleo_lines(prediction: Prediction) -> list[str]:
    every = [(row, series.strategy) for series in prediction.series for row in series.rows]
    best, scheme = max(every, key=lambda one: one[0].rate)
    many = "worker" if best.workers == 1 else f"workers by {scheme}"
    rows = []
    for place, row in enumerate(prediction.series[0].rows):
        parts = row.breakdown
        exchanges = (series.rows[place].breakdown.communicate for series in prediction.series)
        times = _ms(parts.forward, parts.backward, parts.apply, parts.compute, *exchanges)
        rows.append([f"{row.workers:,}", f"{row.batch:,}", *times])
    schemes = [series.strategy for series in prediction.series]
    return [
        f"Paleo's model: fastest with {best.workers:,} {many}, {best.rate:,.0f} samples/s; times in ms, nothing "
        "overlaps.",
        "",
        *aligned(["workers", "batch", "forward", "backward", "apply", "compute", *schemes], rows),
        "",
        f"{prediction.name}, {prediction.parameters:,} parameters; {prediction.scaling} scaling; "
        f"{prediction.basis.compute}, {prediction.basis.links}.",
    ]


def _ms(*seconds: float) -> list[str]:
    return [f"{1e3 * one:,.3f}" for one in seconds]


class ProgressLine:
    """A line on stderr, once a second, where a prediction takes longer; on a terminal it is removed at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._due, self._shown = time.monotonic() + 1.0, False

    def __call__(self, words: str) -> None:
        if time.monotonic() < self._due:
            return
        self._due, self._shown = time.monotonic() + (1.0 if self._terminal else 5.0), True
        self._write(f"\r\x1b[K{words} ..." if self._terminal else f"{words} ...\n")

    def done(self) -> None:
        if self._shown and self._terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

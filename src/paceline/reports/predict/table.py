"""The rows of a prediction as a table: one line a number of workers, or a strategy and a number of workers."""

from collections.abc import Sequence

from paceline.reports.text import percent
from paceline.studies.predict.prediction import ModuleCost, Prediction, PredictionRow
from paceline.units import show_bytes, show_seconds

NOTHING = "-"


def table_lines(prediction: Prediction) -> list[str]:
    """The table with its titles; times are in milliseconds. What is nothing, or said above, has no column."""
    rows = ordered(prediction)
    digits = _digits(min(row.step for _, row in rows))
    cells = [_cells(strategy, row, digits) for strategy, row in rows]
    if all(row.fits for _, row in rows):
        cells = [{**row, "fits": NOTHING} for row in cells]
    if len(prediction.series) == 1:
        cells = [{title: text for title, text in row.items() if title != "strategy"} for row in cells]
    same = len({row.batch for _, row in rows}) == 1
    titles = [
        title
        for title in cells[0]
        if any(row[title] != NOTHING for row in cells) and not (same and title == "batch")
    ]
    return aligned(titles, [[row[title] for title in titles] for row in cells], left=("strategy", "fits"))


def ordered(prediction: Prediction) -> list[tuple[str, PredictionRow]]:
    """By workers, and by strategy within."""
    places = range(len(prediction.workers))
    return [(series.strategy, series.rows[place]) for place in places for series in prediction.series]


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart; numbers to the right."""
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in (titles, *rows):
        pairs = zip(titles, row, widths, strict=True)
        lines.append(
            "  ".join(cell.ljust(wide) if title in left else cell.rjust(wide) for title, cell, wide in pairs)
        )
    return [line.rstrip() for line in lines]


def _cells(strategy: str, row: PredictionRow, digits: int) -> dict[str, str]:
    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:,.{digits}f}" if seconds > 0 else NOTHING

    parts = row.breakdown
    return {
        "strategy": strategy,
        "workers": f"{row.workers:,}",
        "batch": f"{row.batch:,}",
        "data": ms(parts.data),
        "forward": ms(parts.forward),
        "backward": ms(parts.backward),
        "apply": ms(parts.apply),
        "comm": ms(parts.communicate + parts.hidden),
        "hidden": ms(parts.hidden),
        "wait": ms(parts.wait),
        "step ms": ms(row.step),
        "80 % interval": f"{_three(row.low)} .. {_three(row.high)}",
        "samples/s": f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}",
        "speed-up": f"{row.speed_up:,.2f}" if row.speed_up < 100 else f"{row.speed_up:,.0f}",
        "efficiency": percent(round(row.efficiency, 2)),
        "cost/1M": _money(row.cost_million),
        "time": NOTHING if row.finish is None else show_seconds(row.finish),
        "cost": _money(row.cost),
        "memory": NOTHING if row.memory is None else show_bytes(row.memory.total),
        "fits": _fits(row),
    }


def _fits(row: PredictionRow) -> str:
    if row.fits or row.memory is None:
        return "yes"
    largest = row.memory.largest
    return f"does not fit (batch {largest:,} does)" if largest else "does not fit (no batch does)"


def _digits(seconds: float) -> int:
    """Decimals of a millisecond, so that the shortest step has three figures or more."""
    return 0 if seconds >= 10 else 1 if seconds >= 0.01 else 2 if seconds >= 0.001 else 4


def _three(seconds: float) -> str:
    """Milliseconds with three figures."""
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:#.3g}"


def _money(amount: float | None) -> str:
    if amount is None:
        return NOTHING
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


MODULE_TITLES = ("module", "operators", "GFLOP", "moved", "forward ms", "backward ms", "share")


def module_lines(modules: Sequence[ModuleCost]) -> list[str]:
    """A line a module in the order of forward, and the sum; figures that a cost model does not have are left out."""
    rows = [
        [
            one.module,
            one.kinds,
            NOTHING if one.flops is None else f"{one.flops / 1e9:,.3f}",
            NOTHING if one.bytes is None else show_bytes(one.bytes),
            *_ms(one.forward, one.backward),
            f"{100 * one.share:.1f} %",
        ]
        for one in (*modules, _sum(modules))
    ]
    return aligned(MODULE_TITLES, rows, left=MODULE_TITLES[:2])


def _sum(modules: Sequence[ModuleCost]) -> ModuleCost:
    priced = [one for one in modules if one.flops is not None]
    return ModuleCost(
        module="all",
        kinds="",
        flops=sum(one.flops or 0.0 for one in priced) if priced else None,
        bytes=sum(one.bytes or 0.0 for one in priced) if priced else None,
        forward=sum(one.forward for one in modules),
        backward=sum(one.backward for one in modules),
        share=sum(one.share for one in modules),
    )


def paleo_lines(prediction: Prediction) -> list[str]:
    """Paleo's own table: its schemes beside each other, times in milliseconds, and what it rests on."""
    schemes = [series.strategy for series in prediction.series]
    titles = ["workers", "batch", "forward", "backward", "apply", "compute", *schemes]
    rows = []
    for place, row in enumerate(prediction.series[0].rows):
        parts = row.breakdown
        exchanges = (series.rows[place].breakdown.communicate for series in prediction.series)
        times = _ms(parts.forward, parts.backward, parts.apply, parts.compute, *exchanges)
        rows.append([f"{row.workers:,}", f"{row.batch:,}", *times])
    basis = prediction.basis
    words = f"{prediction.name}, {prediction.parameters:,} parameters; {prediction.scaling} scaling; "
    lines = [
        _paleo_answer(prediction),
        "",
        *aligned(titles, rows),
        "",
        f"{words}{basis.compute}, {basis.links}.",
    ]
    return [*lines, "", *module_lines(prediction.modules)] if prediction.modules else lines


def _paleo_answer(prediction: Prediction) -> str:
    """Which row has the most samples a second, and by which scheme."""
    rows = [(row, series.strategy) for series in prediction.series for row in series.rows]
    row, scheme = max(rows, key=lambda one: one[0].rate)
    many = "worker" if row.workers == 1 else f"workers by {scheme}"
    fastest = f"fastest with {row.workers:,} {many}, {row.rate:,.0f} samples/s"
    return f"Paleo's model: {fastest}; times in ms, nothing overlaps."


def _ms(*seconds: float) -> list[str]:
    return [f"{1e3 * one:,.3f}" for one in seconds]

"""The rows of a prediction as a table: one line a number of workers, or a strategy and a number of workers."""

from collections.abc import Sequence

from paceline.reports.text import percent
from paceline.studies.predict.prediction import Prediction, Row
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


def ordered(prediction: Prediction) -> list[tuple[str, Row]]:
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


def _cells(strategy: str, row: Row, digits: int) -> dict[str, str]:
    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:,.{digits}f}" if seconds > 0 else NOTHING

    return {
        "strategy": strategy,
        "workers": f"{row.workers:,}",
        "batch": f"{row.batch:,}",
        "data": ms(row.data),
        "forward": ms(row.forward),
        "backward": ms(row.backward),
        "apply": ms(row.apply),
        "comm": ms(row.communication),
        "hidden": ms(row.hidden),
        "wait": ms(row.wait),
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


def _fits(row: Row) -> str:
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

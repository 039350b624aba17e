"""Numbers and bars as people read them."""

from collections.abc import Sequence
from typing import TextIO

EIGHTHS = " ▏▎▍▌▋▊▉█"


def percent(share: float) -> str:
    """A share with as many figures as it needs: "97 %", "97.5 %"."""
    return f"{100 * share:.4g} %"


def counted(number: float, what: str) -> str:
    """A number and its word: "1 step", "1,350 steps", "0.5 epochs"."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    return f"{shown} {what}" if shown == "1" else f"{shown} {what}s"


def rounded_to_add_up(values: Sequence[float], digits: int) -> list[float]:
    """Round each value so that the rounded ones add up to the rounded sum.

    All are rounded down, and those that lost most get the rest; none is off by a whole last digit.
    """
    scale = 10.0**digits
    exact = [value * scale for value in values]
    whole = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(whole)
    by_loss = sorted(range(len(exact)), key=lambda place: whole[place] - exact[place])
    for place in by_loss[:missing]:
        whole[place] += 1
    return [value / scale for value in whole]


def bar(share: float, width: int, blocks: bool) -> str:
    """A bar of at most ``width`` characters, in eighths of one, or whole ones in ASCII."""
    if not blocks:
        return "#" * round(share * width)
    full, eighths = divmod(round(share * width * 8), 8)
    return (EIGHTHS[8] * full + EIGHTHS[eighths]).rstrip()


def can_draw(stream: TextIO) -> bool:
    try:
        EIGHTHS.encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def figure(value: float) -> str:
    """A loss or a rate with four decimals, or with a power of ten where those would say nothing."""
    if value == 0 or 1e-3 <= abs(value) < 1e4 or value != value:
        return f"{value:.4f}"
    return f"{value:.2e}"


def ms_digits(seconds: float) -> int:
    """Decimals of a millisecond, so that the shortest step has three figures or more."""
    return 0 if seconds >= 10 else 1 if seconds >= 0.01 else 2 if seconds >= 0.001 else 4


def time_left(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def aligned(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = (), gap: int = 2
) -> list[str]:
    """Columns as wide as their widest cell, ``gap`` spaces apart; to the right, but for the titles in ``left``."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        cells = zip(titles, row, widths, strict=True)
        shown = (cell.ljust(wide) if title in left else cell.rjust(wide) for title, cell, wide in cells)
        lines.append((" " * gap).join(shown).rstrip())
    return lines

"""What a person is told: the answer, and what is behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Told:
    """One answer in words and as a document."""

    answer: str
    """One or two sentences."""
    lines: Sequence[str]
    """The table or timeline behind it."""
    document: dict[str, Any]


def exact_seconds(seconds: float) -> str:
    """A time to a thousandth of its unit, without zeros that say nothing: "595.5 s", "32,014 s", "2.097 ms"."""
    size = abs(seconds)
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if size >= s), ("us", 1e-6))
    if not seconds or (0.1 <= size < 1):
        unit, scale = "s", 1.0
    return f"{trimmed(seconds / scale)} {unit}"


def trimmed(value: float) -> str:
    """At most three decimals, and none that says nothing."""
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def three(value: float) -> str:
    """Three figures, zeros included: "0.940", "1.90"."""
    return f"{value:#.3g}".removesuffix(".")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Right-aligned columns, three spaces apart, each as wide as its widest cell; the first one left-aligned words."""
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    words = any(not row[0][:1].isdigit() for row in rows)
    return [
        "   ".join(
            cell.ljust(width) if words and place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (titles, *rows)
    ]

"""One colour for each part of a step and for each run, everywhere: distinguishable without seeing red and green alike.

After Okabe and Ito (2008). Charts name colours by CSS variable, so that light and dark are a matter of the page.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from paceline.reports.svg import DASHES


class Colour(NamedTuple):
    light: str
    dark: str


PARTS: Mapping[str, Colour] = MappingProxyType(
    {
        "data": Colour("#e3cf1f", "#f0e442"),
        "forward": Colour("#56b4e9", "#8ccdf3"),
        "backward": Colour("#0072b2", "#2f8fd0"),
        "communicate": Colour("#d55e00", "#f0772b"),
        "hidden": Colour("#f0b46a", "#c98b3c"),
        "wait": Colour("#cc79a7", "#dd94bd"),
        "apply": Colour("#009e73", "#25c497"),
        "rest": Colour("#8b93a1", "#727d8d"),
        "evaluate": Colour("#5b4a9e", "#a596e6"),
        "checkpoint": Colour("#3f2f1d", "#d3c1a8"),
    }
)
"""The parts of a step in their order, and what lies between steps."""

SERIES: Sequence[Colour] = (
    Colour("#0072b2", "#56b4e9"),
    Colour("#d55e00", "#f58a45"),
    Colour("#00825f", "#2fd0a3"),
    Colour("#a5437c", "#e39ac4"),
    Colour("#9a6a00", "#e6b422"),
    Colour("#5b4a9e", "#a596e6"),
    Colour("#3a84ab", "#9bd3f5"),
    Colour("#4b5563", "#a3adba"),
)
"""Runs, strategies, or the curves of one run."""


_PREFIX = 2 * "-"
"""Of a CSS variable."""


def css_variable(name: str) -> str:
    return f"var({_PREFIX}{name})"


def part_colour(part: str) -> str:
    return css_variable(part)


def series_colour(place: int) -> str:
    return css_variable(f"series-{place % len(SERIES)}")


def series_dash(place: int) -> list[int]:
    """Tells apart what a printer or an eye shows in one colour; [1, 0] is a line without gaps."""
    dashes = DASHES[place % len(DASHES)]
    return [1, 0] if dashes == "none" else [int(one) for one in dashes.split()]


def colour_rules(dark: bool) -> str:
    """The variables of all colours, as CSS declarations."""
    named = {**PARTS, **{f"series-{place}": colour for place, colour in enumerate(SERIES)}}
    return " ".join(f"{_PREFIX}{name}: {one.dark if dark else one.light};" for name, one in named.items())

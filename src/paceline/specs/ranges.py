"""Where the value of a setting may lie: ``lr: Positive = 0.05`` says it beside the type."""

import dataclasses
from collections.abc import Callable
from functools import cache
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from paceline.errors import UsageError


class Range(NamedTuple):
    rule: str
    """As it follows "it must be"."""
    holds: Callable[[float], bool]


def at_least(least: float) -> Range:
    return Range(f"at least {least:g}", lambda value: least <= value < inf)


def from_1_to(most: int) -> Range:
    return Range(f"from 1 to {most:,}", lambda value: 1 <= value <= most)


AtLeastOne = Annotated[int, at_least(1)]
NotNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, Range("more than 0", lambda value: 0 < value < inf)]
Fraction = Annotated[float, Range("at least 0 and less than 1", lambda value: 0 <= value < 1)]
Ratio = Annotated[float, Range("more than 0 and at most 1", lambda value: 0 < value <= 1)]


def out_of_range(value: Any, hint: Any) -> str:
    """What is wrong with a value of this type; empty where nothing is."""
    if value is None:
        return ""
    kinds = union_members(hint)
    broken = [_broken_rule(value, kind) for kind in kinds]
    if "" in broken:
        return ""
    chosen = all(get_origin(kind) is Literal for kind in kinds)
    return f"{'unknown; choose' if chosen else 'out of range; it must be'} {' or '.join(broken)}"


def _broken_rule(value: Any, kind: Any) -> str:
    if get_origin(kind) is Literal:
        *first, last = map(str, get_args(kind))
        choices = f"{', '.join(first)} or {last}" if first else last
        return "" if value in get_args(kind) else choices
    ranges = (one for one in getattr(kind, "__metadata__", ()) if isinstance(one, Range))
    return next((one.rule for one in ranges if isinstance(value, str) or not one.holds(value)), "")


def union_members(hint: Any) -> list[Any]:
    """The types that a value may have beside None; of a type that is no union, the type itself."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [one for one in members if one is not NoneType]


class RangeChecked:
    """A dataclass whose fields are held to their ranges when it is made."""

    def __post_init__(self) -> None:
        check_ranges(self)


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def check_ranges(settings: Any) -> None:
    hints = _type_hints(settings.__class__)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if wrong := out_of_range(value, hints[field.name]):
            raise UsageError(f"{field.name}={value} is {wrong}")

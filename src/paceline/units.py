"""Units at the edge: floats in SI inside, "10 Gbit/s", "50 us" and "1.5 GB" outside."""

import re
from dataclasses import dataclass
from typing import Self

from paceline.errors import ParseError, UsageError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{prefix}B": scale for prefix, scale in (_DECIMAL | _BINARY).items()}
_RATES = {
    f"{prefix}{unit}": scale * size
    for prefix, scale in (_DECIMAL | _BINARY).items()
    for unit, size in (("bit/s", 1 / 8), ("bps", 1 / 8), ("B/s", 1.0))
}
_FLOPS = {f"{prefix}{unit}": scale for prefix, scale in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS")}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*$")
_BITS_OR_BYTES = re.compile(r"([\d.]+)\s*([kKmMgGtT])(?:b(?:/s)?|B)$")
_BITS = re.compile(r"\s*([kmgt]?)(i?)bit(/s)?$", re.IGNORECASE)


def parse_seconds(text: str) -> float:
    """Read a time such as "50 us"; zero is allowed."""
    return _parse(text, text, _SECONDS, "a time", "50 us")


def parse_bytes(text: str) -> float:
    return _parse(text, text, _BYTES, "a size", "25 MiB")


def parse_flops(text: str) -> float:
    """Read a peak such as "1.87 TFLOP/s" into operations a second."""
    return _parse(text, text, _FLOPS, "a rate of operations", "1.87 TFLOP/s", positive=True)


def parse_rate(text: str) -> float:
    """Read a bandwidth such as "10 Gbit/s" into bytes a second."""
    if match := _BITS_OR_BYTES.match(text.strip()):
        number, prefix = match[1], _prefix(match[2])
        raise UsageError(
            f"{text!r} may be bits or bytes: write '{number} {prefix}bit/s' or '{number} {prefix}B/s'"
        )
    plain = _BITS.sub(lambda found: f" {_prefix(found[1])}{found[2]}bit/s", text.strip())
    return _parse(text, plain, _RATES, "a bandwidth", "10 Gbit/s", positive=True)


def _prefix(letter: str) -> str:
    return "k" if letter in ("k", "K") else letter.upper()


def _parse(
    text: str, plain: str, units: dict[str, float], what: str, example: str, *, positive: bool = False
) -> float:
    """Read ``plain``, which is ``text`` in the usual spelling of its unit."""
    match = _QUANTITY.match(plain)
    if not match or match[2] not in units:
        usual = ", ".join(unit for unit in units if unit[:2] not in _BINARY and "bps" not in unit)
        raise ParseError(
            f"{text!r} is not {what}: write a number and one of {usual}, for example {example!r}"
        )
    value = float(match[1]) * units[match[2]]
    if not 0 <= value < float("inf") or (positive and not value):
        rule = "finite and more than zero" if positive else "finite and not negative"
        raise UsageError(f"{text!r} is not {what}: it must be {rule}, for example {example!r}")
    return value


class Size(float):
    """A size in bytes that a setting reads from text: "25 MiB", or plain bytes."""

    @classmethod
    def parse(cls, text: str) -> Self:
        size = float(text) if text.strip().isdigit() else parse_bytes(text)
        if size < 1:
            raise UsageError(f"{text!r} is too small a size: it must be at least 1 B, for example '25 MiB'")
        return cls(size)

    def __str__(self) -> str:
        return f"{self / 2**20:g}MiB" if self % 2**20 == 0 else f"{self:.0f}"


class Share(float):
    """A part of a whole that a setting reads from text: "5%" or "0.05"; 0 is none of it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        number = text.strip().removesuffix("%")
        try:
            share = float(number) / (100 if text.strip().endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise UsageError(
                f"{text!r} is not a share: it must be at least 0% and less than 100%, for example '5%'"
            )
        return cls(share)

    def __str__(self) -> str:
        return f"{100 * self:g}%"


_SHORTEST = "it must be at least 1 step, or more than 0 s"


@dataclass(frozen=True)
class Period:
    """How long workers train alone: steps ("16" as text), or seconds ("0.5s") until the next step that ends."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 0 or self.seconds < 0 or bool(self.steps) == bool(self.seconds):
            raise UsageError(f"a period of {self} is too short: {_SHORTEST}")

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.lstrip("-").isdecimal():
            if int(text) < 1:
                raise UsageError(f"a period of {text} steps is too short: {_SHORTEST}")
            return cls(steps=int(text))
        try:
            return cls(seconds=parse_seconds(text))
        except ParseError:
            raise UsageError(f"{text!r} is not a period: write steps ('16') or time ('0.5s')") from None

    def is_over(self, clock: int, seconds: float) -> bool:
        """Whether the step just finished ends a period."""
        return clock % self.steps == 0 if self.steps else seconds >= self.seconds

    def __str__(self) -> str:
        return str(self.steps) if self.steps else f"{self.seconds:g}s"


def show_seconds(seconds: float) -> str:
    """A time with three figures and the unit that fits: "2.15 ms"."""
    if abs(seconds) >= 600:
        return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"
    unit, scale = next(one for one in (("s", 1.0), ("ms", 1e-3), ("us", 0.0)) if abs(seconds) >= one[1])
    return f"{_three(seconds / (scale or 1e-6))} {unit}"


def show_bytes(size: float) -> str:
    """A size with three figures and the decimal unit that fits: "82.1 kB"."""
    return _show(size, "B")


def show_rate(rate: float) -> str:
    """A bandwidth as networks are sold: "10 Gbit/s"."""
    return _show(rate * 8, "bit/s")


def _show(value: float, unit: str) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"

"""Units at the edge: floats in SI inside, "10 Gbit/s", "50 us" and "1.5 GB" outside."""

import re
from typing import Self

from paceline.errors import ParseError, UsageError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIXES = {**_DECIMAL, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{prefix}B": scale for prefix, scale in _PREFIXES.items()}
_RATES = {
    f"{prefix}{unit}": scale * size
    for prefix, scale in _PREFIXES.items()
    for unit, size in (("bit/s", 1 / 8), ("bps", 1 / 8), ("B/s", 1.0))
}
_FLOPS = {f"{prefix}{unit}": scale for prefix, scale in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS")}
_BINARY = ("Ki", "Mi", "Gi", "Ti")
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*$")
_BITS_OR_BYTES = re.compile(r"([\d.]+)\s*([kKmMgGtT])(?:b(?:/s)?|B)$")


def parse_seconds(text: str) -> float:
    """Read a time such as "50 us"; zero is allowed."""
    return _parse(text, _SECONDS, "a time", "50 us")


def parse_bytes(text: str) -> float:
    """Read a size such as "25 MiB"."""
    return _parse(text, _BYTES, "a size", "25 MiB")


def parse_flops(text: str) -> float:
    """Read a peak such as "1.87 TFLOP/s" into operations a second."""
    flops = _parse(text, _FLOPS, "a rate of operations", "1.87 TFLOP/s")
    if flops == 0:
        raise UsageError(f"{text!r} is not a peak: it must be more than zero, for example '1.87 TFLOP/s'")
    return flops


def parse_rate(text: str) -> float:
    """Read a bandwidth such as "10 Gbit/s" into bytes a second."""
    if match := _BITS_OR_BYTES.match(text.strip()):
        number, prefix = match[1], _case(match[2])
        raise UsageError(
            f"{text!r} may be bits or bytes: write '{number} {prefix}bit/s' or '{number} {prefix}B/s'"
        )
    folded = re.sub(r"(?i)\s*([kmgt]i?)?(bit)(/s)?$", lambda m: f" {(m[1] or '')}bit/s", text.strip())
    folded = re.sub(r"\s([KMGTkmgt])(i?)bit/s$", lambda m: f" {_case(m[1])}{m[2]}bit/s", folded)
    rate = _parse(folded, _RATES, "a bandwidth", "10 Gbit/s", shown=text)
    if rate == 0:
        raise UsageError(f"{text!r} is not a bandwidth: it must be more than zero, for example '10 Gbit/s'")
    return rate


def _case(prefix: str) -> str:
    return "k" if prefix in "kK" else prefix.upper()


def _parse(text: str, units: dict[str, float], what: str, example: str, shown: str | None = None) -> float:
    match = _QUANTITY.match(text)
    shown = text if shown is None else shown
    if not match or match[2] not in units:
        usual = ", ".join(unit for unit in units if not unit.startswith(_BINARY) and "bps" not in unit)
        raise ParseError(
            f"{shown!r} is not {what}: write a number and one of {usual}, for example {example!r}"
        )
    value = float(match[1]) * units[match[2]]
    if value < 0 or value == float("inf"):
        raise UsageError(
            f"{shown!r} is not {what}: it must be finite and not negative, for example {example!r}"
        )
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


def show_seconds(seconds: float) -> str:
    """A time with three figures and the unit that fits: "2.15 ms"."""
    size = abs(seconds)
    if size >= 600:
        return f"{seconds / 60:.1f} min" if size < 7200 else f"{seconds / 3600:.1f} h"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= scale or unit == "us":
            return f"{_three(seconds / scale)} {unit}"
    raise AssertionError("unreachable")


def show_bytes(size: float) -> str:
    """A size with three figures and the decimal unit that fits: "82.1 kB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{_three(size / scale)} {unit}"
    return f"{size:.0f} B"


def show_rate(rate: float) -> str:
    """A bandwidth as networks are sold: "10 Gbit/s"."""
    bits = rate * 8
    for unit, scale in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= scale:
            return f"{_three(bits / scale)} {unit}"
    return f"{bits:.0f} bit/s"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"

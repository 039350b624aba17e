"""A machine that was measured: one small file that can be shared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A link between workers, as measured."""

    name: str
    """How it was reached: "memory" (shared memory of one host), "loopback" (Gloo on one host) or "network"."""
    bandwidth: float
    """Bytes a second."""
    latency: float
    """Seconds."""
    reduce_seconds: float
    """Seconds a byte to combine what comes with what is held."""
    spread: float
    """Standard deviation of the logarithm of (measured / predicted)."""
    points: int
    """Measurements behind it."""
    workers: int = 2
    """How many talked at once."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What ``paceline calibrate`` found; the device's part is a document that ``costs.devices.fitted`` reads."""

    name: str
    made: str
    """UTC, such as 2026-11-16T03:40:00Z."""
    versions: Mapping[str, str]
    """Of paceline, torch and Python."""
    machine: Mapping[str, Any]
    """CPU or GPU by name, cores, threads a worker."""
    device: Mapping[str, Any]
    links: tuple[LinkFit, ...] = ()
    company: tuple[float, ...] = ()
    """How many times as long computing takes with 1, 2, 3... workers of the host at it; the first is 1."""
    company_short: tuple[float, ...] = ()
    """The same where they meet after every step of a few milliseconds: cores that are shared are shared unevenly."""

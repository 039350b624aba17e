"""A machine that was measured: one small file that can be shared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 4

DISTURBED = "disturbed"
"""What ``machine`` of a profile holds where something else computed while it was measured: a sentence."""

INSIDE = ("memory", "loopback", "messages")
"""Names of links inside a host."""

SLICE = 0.003
"""Seconds for which a worker has a core for itself, where it shares one, before it is another one's turn (Linux)."""


def moment(apart: float) -> float:
    """How much workers who meet after so many seconds are like workers who meet at once, 1, or never, 0.

    Who has no core meanwhile is waited for. That costs in proportion while all is shorter than a slice; beyond, it is
    some slices, however long it takes until the next meeting.
    """
    return 1 / (1 + apart / SLICE)


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A link between workers, as measured."""

    name: str
    """How it was reached: "memory" (shared memory of one host), "loopback" (Gloo on one host), "messages" (with a
    server on one host), "network" (all-reduces between hosts) or "wire" (messages between hosts)."""
    bandwidth: float
    """Bytes a second."""
    latency: float
    """Seconds."""
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
    """CPU or GPU by name, cores, threads a worker; and what disturbed the measurement, where anything did."""
    device: Mapping[str, Any]
    links: tuple[LinkFit, ...] = ()
    contention: tuple[float, ...] = ()
    """How many times as long computing takes with 1, 2, 3... workers of the host at it; the first is 1."""
    contention_short: tuple[float, ...] = ()
    """The same where they meet again after a moment: cores that are shared are then shared unevenly."""
    cipher: float | None = None
    """Bytes a second, each way, that one process encrypts; None in a profile that is older than the measurement."""

    def contention_between(self, apart: float) -> tuple[float, ...]:
        """How many times as long computing takes with 1, 2, 3... workers who meet after so many seconds of it."""
        if len(self.contention_short) != len(self.contention):
            return self.contention
        part = moment(apart)
        pairs = zip(self.contention_short, self.contention, strict=True)
        return tuple(long + (short - long) * part for short, long in pairs)

    def link(self, name: str, workers: int) -> LinkFit | None:
        """What was measured of a link with as many workers, or with the number next to it; None where nothing was."""
        found = [fit for fit in self.links if fit.name == name]
        return min(found, key=lambda fit: (abs(fit.workers - workers), fit.workers)) if found else None

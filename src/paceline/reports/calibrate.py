"""A calibration as people read it: the answer, how far off it is, what was found, and what to type next."""

import sys
import time
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from typing import TextIO

from paceline.clusters.profile import LinkFit
from paceline.reports.meters import meter_for
from paceline.reports.text import counted, time_left
from paceline.studies.calibrate.results import DeviceFound, RecordFound
from paceline.units import show_bytes, show_seconds


class ShownCalibration:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, err: TextIO | None = None) -> None:
        stream = err or sys.stderr
        self._meter = meter_for(stream, stream)
        self._begun = time.monotonic()
        self._due = self._begun + self._meter.interval

    def progressed(self, done: float, words: str) -> None:
        """Show it when it is time."""
        now = time.monotonic()
        if now >= self._due:
            left = (now - self._begun) * (1 - done) / done if done else 0.0
            self._meter.show(done, f"{words}  {time_left(left)} left" if left else words)
            self._due = now + self._meter.interval

    def noted(self, sentence: str) -> None:
        """Say it at once."""
        self._meter.say(sentence)

    def close(self) -> None:
        """Leave the terminal tidy."""
        self._meter.stop()


def tell_device(found: DeviceFound) -> Iterator[str]:
    """What was found of the device."""
    middle, most = found.steps
    yield (
        f"Steps of networks that the fit has not seen are {_share(middle)} off, nine tenths within {_share(most)}."
    )
    yield (
        f"measured: {counted(found.operators, 'operator')} of {counted(found.networks, 'random network')} "
        f"and {counted(found.layers, 'single layer')}, {counted(found.threads, 'thread')} a worker; at best "
        f"{_rate(found.flops)} and {show_bytes(found.bandwidth)}/s of memory"
    )
    if found.disturbed:
        yield found.disturbed
    if found.dropped:
        yield f"left out: {counted(found.dropped, 'measurement')} that cannot be (faster than the peak)"
    yield ""
    yield f"{'operators':12}  {'off by':>7}  {'9 of 10':>7}  rates, by shape"
    for kind, (half, nine) in found.residuals.items():
        rates = found.rates.get(kind)
        span = f"{rates[0] / 1e9:.3g} to {_rate(rates[1])}" if rates else ""
        yield f"{kind:12}  {_share(half):>7}  {_share(nine):>7}  {span}".rstrip()


def tell_record(found: RecordFound) -> Iterator[str]:
    """What a record of a run has corrected."""
    yield (
        f"{found.name} at batch {found.samples}, by the record {found.folder}: the model's step was "
        f"{100 * found.off:+.0f} % off; each phase now takes as long as it did there"
    )
    for phase, measured in found.measured.items():
        yield f"  {phase:9} {show_seconds(measured):>9} measured  {show_seconds(found.predicted[phase]):>9} before"


def tell_together(
    workers: int, short: float, long: float, links: Sequence[LinkFit], path: Path
) -> Iterator[str]:
    """What several workers found of their links and of each other."""
    if any(link.name == "memory" for link in links):
        yield (
            f"{workers} workers at once compute {long:.2f} times as long each as one alone, "
            f"{short:.2f} times where they meet after every step"
        )
    for link in links:
        yield (
            f"  {link.name:9} {show_bytes(link.bandwidth)}/s, {show_seconds(link.latency)} a message, "
            f"off by a typical factor of {exp(link.spread):.3g} ({counted(link.points, 'measurement')})"
        )
    yield f"added to: {path}"
    yield from _next(path)


def tell_file(path: Path, replaced: str | None, *, last: bool) -> Iterator[str]:
    """Where it was written and, if this is the ``last`` word, what to do with it."""
    size = show_bytes(path.stat().st_size)
    yield f"written: {path} ({size}){f', in place of {replaced}' if replaced else ''}"
    if last:
        yield from _next(path)


def _next(path: Path) -> Iterator[str]:
    yield f"next: paceline predict resnet18 --profile {path}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _rate(flops: float) -> str:
    return f"{flops / 1e9:.3g} GFLOP/s"

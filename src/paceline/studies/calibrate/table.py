"""From one worker's times and a single point of more, the rest of a table of measured epochs.

T(n, b) = T(1, b)/n + steps x communication of n. Communication has one unknown, t, the time in which
one worker's gradients cross one link; a collective's closed form says how many times t it takes among n, and the
single point says how long t is. One point cannot tell which collective it was: that is stated, or all are shown.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from paceline.clusters import toml_reader as toml
from paceline.collectives.traffic import ring_crossings
from paceline.costs.paleo import SCHEMES
from paceline.errors import UsageError, unknown

INTERVAL = 1.2816
"""Standard deviations on either side of the middle of a normal distribution that hold 80 % of it."""

TRANSFERS: Mapping[str, Callable[[int], float]] = {**SCHEMES, "ring": ring_crossings}
"""Collective to how many times one worker's gradients cross the busiest link, one after the other."""


class TablePoint(NamedTuple):
    """A place in the table, written "2x128"."""

    workers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers}x{self.batch}"

    @classmethod
    def parse(cls, text: str) -> "TablePoint":
        if not (found := re.fullmatch(r"\s*(\d+)\s*[xX]\s*(\d+)\s*", text)):
            raise UsageError(f"{text!r} is not a point of a table: write workers x batch, such as '2x128'")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, kw_only=True)
class EpochTable:
    """Every batch was measured with one worker too."""

    model: toml.Name = "the model"
    parameters: toml.Count
    samples: toml.Count
    epochs: Mapping[TablePoint, float]

    def steps(self, point: TablePoint) -> int:
        return -(-self.samples // (point.workers * point.batch))

    def alone(self, batch: int) -> float:
        return self.epochs[TablePoint(1, batch)]

    @property
    def together(self) -> list[TablePoint]:
        return sorted(point for point in self.epochs if point.workers > 1)

    def compute(self, point: TablePoint) -> float:
        """Seconds an epoch that one worker's time explains: its part of the samples."""
        return self.alone(point.batch) / point.workers


def read_table(path: Path) -> EpochTable:
    reader = toml.read_toml(path, "table")
    for key in ("about", "ask"):
        reader.get(key, toml.Name, "")
    return table_of(reader)


def table_of(reader: toml.Reader) -> EpochTable:
    """The table that a file's keys make; keys that were not read by now are refused."""
    reader.need("parameters = 11_173_962", "samples = 50_000")
    epochs: dict[TablePoint, float] = {}
    table, rows = reader.fill(EpochTable, epochs=epochs), reader.tables("measured")
    reader.finish()
    for row in rows:
        _read_row(row, epochs)
    if not epochs:
        raise UsageError(
            f"{reader.where} has no measured times: add [[measured]] with workers, batch and epoch"
        )
    for point in epochs:
        if TablePoint(1, point.batch) not in epochs:
            raise UsageError(
                f"{reader.where}: {point} was measured and 1x{point.batch} was not: what {point.workers} workers gain "
                f"or lose is only seen beside one; add batch {point.batch} to the row with workers = 1"
            )
    return table


def _read_row(reader: toml.Reader, epochs: dict[TablePoint, float]) -> None:
    reader.need("workers = 2", "batch = [32, 128]", 'epoch = ["30.38 s", "12.82 s"]')
    workers: int = reader.get("workers", toml.Count, 0)
    batches: Sequence[int] = reader.get("batch", tuple[toml.Count, ...], ())
    seconds: Sequence[float] = reader.get("epoch", tuple[toml.Seconds, ...], ())
    reader.finish()
    if len(batches) != len(seconds) or min(seconds, default=1.0) <= 0:
        rule = f"there must be as many as batches, {len(batches)}, and each more than 0 s"
        raise reader.wrong("epoch", reader.values["epoch"], rule)
    for batch, length in zip(batches, seconds, strict=True):
        point = TablePoint(workers, batch)
        if point in epochs:
            raise reader.wrong("batch", batch, f"{point} is measured twice; keep one")
        epochs[point] = length


class Forecast(NamedTuple):
    """One point as it was predicted and, where it was, measured: seconds an epoch."""

    point: TablePoint
    seconds: float
    measured: float | None

    @property
    def error(self) -> float | None:
        return None if self.measured is None else self.seconds / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """One collective, fitted to one point. What is about errors is None where nothing else was measured."""

    collective: str
    start: TablePoint
    transfer: float
    """Seconds in which one worker's gradients cross one link."""
    rate: float
    points: tuple[Forecast, ...]

    @property
    def errors(self) -> list[float]:
        return [point.error for point in self.points if point.error is not None]

    @property
    def median(self) -> float | None:
        return median(map(abs, self.errors)) if self.errors else None

    @property
    def worst(self) -> float | None:
        return max(self.errors, key=abs) if self.errors else None

    @property
    def spread(self) -> float | None:
        """Root mean square of the logarithms of predicted over measured."""
        return fmean(log(1 + error) ** 2 for error in self.errors) ** 0.5 if self.errors else None

    def interval(self, seconds: float) -> tuple[float, float] | None:
        """80 % interval, if this table is like those to come; by the fit's own residuals."""
        width = None if self.spread is None else exp(INTERVAL * self.spread)
        return None if width is None else (seconds / width, seconds * width)

    def to_json(self) -> dict[str, Any]:
        points = [
            {**one._asdict(), "point": str(one.point), "error": one.error}
            | dict(zip(("low", "high"), self.interval(one.seconds) or (None, None), strict=True))
            for one in self.points
        ]
        figures = {"transfer": self.transfer, "rate": self.rate, "median": self.median, "worst": self.worst}
        return {"collective": self.collective, "from": str(self.start), **figures, "points": points}


def fit_table(
    table: EpochTable,
    *,
    start: TablePoint | None = None,
    collective: str | None = None,
    predict: Sequence[TablePoint] = (),
) -> list[TableFit]:
    """Fit each collective, or the one that is named, to one point; the one that suits the others best comes first.

    ``start`` is the point that is fitted to; where it is not given, the one with the most workers and the middle
    batch. ``predict`` names further points, each at a batch that one worker was measured with.
    """
    if collective is not None and collective not in TRANSFERS:
        raise unknown("collective", collective, TRANSFERS)
    first = _start(table, start)
    rest = (table.epochs[first] - table.compute(first)) / table.steps(first)
    if not rest > 0:
        raise UsageError(
            f"{first} took {table.epochs[first]:g} s, no longer than 1/{first.workers} of one worker's "
            f"{table.alone(first.batch):g} s: nothing is left for communication, so there is nothing to "
            "fit; choose another point"
        )
    others = sorted({*table.together, *predict} - {first})
    known = {point.batch for point in table.epochs}
    for point in others:
        if point.batch not in known:
            raise UsageError(
                f"{point} cannot be predicted: one worker was not measured at batch {point.batch}, only at "
                f"{', '.join(map(str, sorted(known)))}"
            )
    fits = []
    for name in TRANSFERS if collective is None else (collective,):
        transfer = rest / TRANSFERS[name](first.workers)
        points = []
        for point in others:
            communicate = table.steps(point) * transfer * TRANSFERS[name](point.workers)
            points.append(Forecast(point, table.compute(point) + communicate, table.epochs.get(point)))
        rate = 4 * table.parameters / transfer
        fit = TableFit(collective=name, start=first, transfer=transfer, rate=rate, points=tuple(points))
        fits.append(fit)
    return sorted(fits, key=lambda fit: fit.spread or 0.0)


def _start(table: EpochTable, start: TablePoint | None) -> TablePoint:
    together = table.together
    if not together:
        raise UsageError("the table has no point of more than one worker; a fit needs one, such as 2x128")
    if start is None:
        most = [point for point in together if point.workers == together[-1].workers]
        return most[len(most) // 2]
    if start not in together:
        why = "says nothing about communication" if start.workers < 2 else "was not measured"
        raise UsageError(f"{start} {why}; choose one of {', '.join(map(str, together))}")
    return start

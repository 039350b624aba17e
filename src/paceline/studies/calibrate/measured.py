"""A table of measured epochs: how long one took, by workers and by batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.clusters.toml_reader import Reader, read_toml
from paceline.errors import UsageError
from paceline.studies.calibrate.table_fit import Point


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds an epoch; every batch was measured with one worker too."""

    model: str
    parameters: int
    samples: int
    """Of an epoch."""
    epochs: Mapping[Point, float]
    """Point to seconds."""

    def steps(self, point: Point) -> int:
        """Steps of an epoch."""
        return -(-self.samples // (point.workers * point.batch))

    def alone(self, batch: int) -> float:
        """One worker's epoch with this batch."""
        return self.epochs[Point(1, batch)]

    @property
    def together(self) -> list[Point]:
        """The points of more than one worker, in order."""
        return sorted(point for point in self.epochs if point.workers > 1)

    def compute(self, point: Point) -> float:
        """Seconds an epoch that one worker's time explains: its part of the samples."""
        return self.alone(point.batch) / point.workers

    def communicate(self, point: Point) -> float:
        """Seconds a step that it does not explain."""
        return (self.epochs[point] - self.compute(point)) / self.steps(point)


def read_measured(path: Path) -> Measured:
    """Read a table from a file; a scenario that asks for scaling is one too."""
    reader = read_toml(path, "table")
    for key in ("about", "ask"):
        reader.word(key, "scaling")
    return measured_of(reader)


def measured_of(reader: Reader) -> Measured:
    """The table that a file's keys make; keys that nobody has asked for by now are refused."""
    reader.need("parameters = 11_173_962", "samples = 50_000")
    model, parameters = reader.word("model", "the model"), reader.whole("parameters", 0, least=1)
    samples = reader.whole("samples", 0, least=1)
    rows = reader.tables("measured")
    reader.finish()
    epochs: dict[Point, float] = {}
    for row in rows:
        _read_row(row, epochs)
    measured = Measured(model=model, parameters=parameters, samples=samples, epochs=epochs)
    _check(reader.where, measured)
    return measured


def _read_row(reader: Reader, epochs: dict[Point, float]) -> None:
    """The epochs of one number of workers."""
    reader.need("workers = 2", "batch = [32, 128]", 'epoch = ["30.38 s", "12.82 s"]')
    workers = reader.whole("workers", 0, least=1)
    batches = [one.whole(key, 0, least=1) for one, key in reader.items("batch")]
    seconds = [(one.seconds(key, 0.0), one, key) for one, key in reader.items("epoch")]
    reader.finish()
    if len(batches) != len(seconds):
        raise reader.wrong(
            "epoch", f"{len(seconds)} times", f"there must be as many as batches, {len(batches)}: one each"
        )
    for batch, (length, one, key) in zip(batches, seconds, strict=True):
        if not length > 0:
            raise one.wrong(key, one.values[key], "an epoch takes more than 0 s")
        if Point(workers, batch) in epochs:
            raise reader.wrong("batch", batch, f"{Point(workers, batch)} is measured twice; keep one")
        epochs[Point(workers, batch)] = length


def _check(where: str, measured: Measured) -> None:
    if not measured.epochs:
        raise UsageError(f"{where} has no measured times: add [[measured]] with workers, batch and epoch")
    for point in measured.together:
        if Point(1, point.batch) not in measured.epochs:
            raise UsageError(
                f"{where}: {point} was measured and 1x{point.batch} was not: what {point.workers} workers gain or lose "
                f"is only seen beside one; add batch {point.batch} to the row with workers = 1"
            )

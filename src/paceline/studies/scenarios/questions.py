"""Questions that are answered by a formula, or handed on: explain, lower-bound, peak and scaling."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from paceline.clusters.catalogue import find_device
from paceline.clusters.toml_reader import Reader
from paceline.costs.bandwidth import bandwidth_use, lower_bound_bytes
from paceline.errors import UsageError
from paceline.studies.calibrate.table import EpochTable, TablePoint, table_of
from paceline.studies.scenarios.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """One model on a device that is always at its peak."""

    model: str
    operations: float
    """An image."""
    seconds: float
    """An image."""
    rate: float
    """Images a second."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What a device could do at best."""

    device: str
    flops: float
    models: tuple[Throughput, ...]


@dataclass(frozen=True, kw_only=True)
class LeastTraffic:
    """The lower bound of an all-reduce, and the use that a measured time makes of it."""

    items: int
    item_size: int
    processes: int
    bound: int
    """Bytes that some process must send."""
    seconds: float | None = None
    use: float | None = None
    """Bytes a second: the bound over the time."""
    link: float | None = None
    """Bytes a second that the link could carry."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One measured epoch, and what it is made of."""

    workers: int
    batch: int
    """Of a worker."""
    seconds: float
    steps: int
    speed_up: float
    """Over one worker with the same batch."""
    compute: float
    """One worker's epoch over the workers."""
    communicate: float
    """The rest; negative where many are more than so many times as fast."""
    use: float | None
    """Bytes a second of the least that an all-reduce must move; None for one worker, or where nothing is left."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A table of measured epochs as a scaling study prints it."""

    model: str
    parameters: int
    samples: int
    points: tuple[ScalingPoint, ...]


MOST = 1_000
"""Of anything that is counted; the report draws far less, and says how much, once it has begun."""


def read_request(scenario: Scenario) -> dict[str, Any]:
    """The settings of [explain] by name, as the command of that name has them; its report plays the collective."""
    reader = scenario.reader.table("explain")
    reader.need('schedule = "ring"')
    request: dict[str, Any] = {"schedule": reader.word("schedule", ""), "op": reader.word("op", "sum")}
    if "values" in reader.values:
        rows = [
            " ".join(f"{number.number(place, 0.0):.17g}" for number, place in row.items(key))
            for row, key in reader.items("values")
        ]
        request["values"] = "; ".join(rows)
    for key in ("workers", "length", "seed", "segments"):
        if key in reader.values:
            request[key] = reader.whole(key, 0) if key == "seed" else reader.whole(key, 0, most=MOST)
    if "hosts" in reader.values:
        request["hosts"] = ",".join(
            str(number.whole(key, 0, most=MOST)) for number, key in reader.items("hosts")
        )
    reader.finish()
    scenario.reader.finish()
    return request


def least_traffic(scenario: Scenario) -> LeastTraffic:
    """Read [all-reduce] and work it out."""
    reader = scenario.reader.table("all-reduce")
    reader.need("items = 11_170_000", "processes = 4")
    items, processes = reader.whole("items", 0, least=1), reader.whole("processes", 0, least=1)
    size = reader.size("item", 4.0)
    if size < 1 or size != int(size):
        raise reader.wrong("item", reader.values["item"], "an item has a whole number of bytes, at least 1")
    seconds, link = reader.seconds("time", 0.0), reader.rate("bandwidth", 0.0)
    if "time" in reader.values and not seconds:
        raise reader.wrong("time", reader.values["time"], "it must be more than 0 s")
    reader.finish()
    scenario.reader.finish()
    return LeastTraffic(
        items=items,
        item_size=int(size),
        processes=processes,
        bound=lower_bound_bytes(items, int(size), processes),
        seconds=seconds or None,
        use=bandwidth_use(items, int(size), processes, seconds) if seconds else None,
        link=link or None,
    )


def peak(scenario: Scenario) -> Peak:
    """Read [device] and [[models]] and divide."""
    device, flops = _read_device(scenario.reader.table("device"))
    models = scenario.reader.tables("models")
    scenario.reader.finish()
    if not models:
        raise UsageError(f"{scenario.path} names no model: add [[models]] with name, and operations or model")
    return Peak(device=device, flops=flops, models=tuple(_throughput(reader, flops) for reader in models))


def _read_device(reader: Reader) -> tuple[str, float]:
    """A name and a peak: stated, or that of the catalogue."""
    reader.need('name = "k80"')
    name, stated = reader.word("name", ""), reader.flops("peak", 0.0)
    reader.finish()
    return name, stated or find_device(name).flops


def _throughput(reader: Reader, flops: float) -> Throughput:
    reader.need('name = "VGG-16"')
    name = reader.word("name", "")
    operations = _operations(reader, name)
    reader.finish()
    return Throughput(model=name, operations=operations, seconds=operations / flops, rate=flops / operations)


def _operations(reader: Reader, name: str) -> float:
    """As stated; else those of a forward by the model's trace, where a multiply-add is two of them, as in a peak."""
    stated = reader.number("operations", 1.0)
    model = reader.word("model", name)
    if "operations" in reader.values:
        if "model" in reader.values:
            raise reader.wrong("model", model, "operations say it already; leave one of them out")
        if not (stated > 0 and isfinite(stated)):
            raise reader.wrong(
                "operations", stated, "an image takes more than 0 of them, for example 3_922e6"
            )
        return stated
    from paceline.costs.trace.trace import trace  # these import torch, which stated operations do not need
    from paceline.jobs.build import traceable_of

    return 2 * trace(traceable_of(model), 1).multiply_adds


ELEMENT = 4
"""Bytes of a gradient's element."""


def scaling(scenario: Scenario) -> Scaling:
    """Read the table and take every epoch apart."""
    return scaling_of(table_of(scenario.reader))


def scaling_of(measured: EpochTable) -> Scaling:
    """Compute is one worker's epoch over the workers; what is left is communication."""
    points = tuple(_point(measured, point) for point in sorted(measured.epochs))
    return Scaling(
        model=measured.model, parameters=measured.parameters, samples=measured.samples, points=points
    )


def _point(measured: EpochTable, point: TablePoint) -> ScalingPoint:
    seconds, steps, compute = measured.epochs[point], measured.steps(point), measured.compute(point)
    rest = seconds - compute
    use = None
    if point.workers > 1 and rest > 0:
        use = bandwidth_use(measured.parameters, ELEMENT, point.workers, rest / steps)
    return ScalingPoint(
        workers=point.workers,
        batch=point.batch,
        seconds=seconds,
        steps=steps,
        speed_up=measured.alone(point.batch) / seconds,
        compute=compute,
        communicate=rest,
        use=use,
    )

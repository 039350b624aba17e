"""``ask = "peak"``: how many images a second a device could do if it were always at its peak."""

from math import isfinite

from paceline.clusters.catalogue import find_device
from paceline.clusters.toml_reader import Reader
from paceline.errors import UsageError
from paceline.studies.scenarios.answers import Peak, Throughput
from paceline.studies.scenarios.scenario import Scenario


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
    from paceline.costs.trace.tracer import trace  # these import torch, which stated operations do not need
    from paceline.jobs.subjects import subject_of

    return 2 * trace(subject_of(model), 1).multiply_adds

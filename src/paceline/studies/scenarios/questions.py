"""Questions that a formula or another study answers: explain, lower-bound, peak, predict and scaling.

What imports torch is imported where it is needed: formulas answer at once.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from paceline.clusters import toml_reader as toml
from paceline.clusters.catalogue import find_device
from paceline.collectives.traffic import bandwidth_use, lower_bound_bytes
from paceline.errors import UsageError
from paceline.studies.scenarios.scenario import Answer, Scenario

if TYPE_CHECKING:
    from paceline.studies.predict import Prediction

SmallCount = Annotated[int, Meta(ge=0, le=1_000)]
"""Of anything that is counted; the report draws far less, and says how much, once it has begun."""
ELEMENT = 4


def read_request(scenario: Scenario) -> Answer:
    """The settings of [explain] by name; the report plays the collective."""
    reader = scenario.reader.table("explain")
    reader.need('schedule = "ring"')
    values: Sequence[Sequence[float]] = reader.get("values", tuple[tuple[toml.Number, ...], ...], ())
    hosts = reader.get("hosts", tuple[SmallCount, ...], ())
    request: Answer = {
        "schedule": reader.get("schedule", toml.Name, ""),
        "op": reader.get("op", toml.Name, "sum"),
        "codec": reader.get("codec", toml.Name, "identity"),
        "values": "; ".join(" ".join(f"{number:.17g}" for number in row) for row in values),
        "hosts": ",".join(map(str, hosts)),
        "seed": reader.get("seed", toml.WholeNumber, 0),
    }
    request |= {key: reader.get(key, SmallCount, 0) for key in ("workers", "length", "segments")}
    scenario.finish(reader)
    return {key: value for key, value in request.items() if key in ("op", *reader.values)}


def least_traffic(scenario: Scenario) -> Answer:
    reader = scenario.reader.table("all-reduce")
    reader.need("items = 11_170_000", "processes = 4")
    items, processes = reader.get("items", toml.Count, 0), reader.get("processes", toml.Count, 0)
    size = reader.get("item", toml.Bytes, 4.0)
    if size < 1 or size != int(size):
        raise reader.wrong("item", reader.values["item"], "an item has a whole number of bytes, at least 1")
    seconds, link = reader.get("time", toml.Seconds, 0.0), reader.get("bandwidth", toml.Rate, 0.0)
    if "time" in reader.values and not seconds:
        raise reader.wrong("time", reader.values["time"], "it must be more than 0 s")
    scenario.finish(reader)
    return {
        "items": items,
        "item_size": int(size),
        "processes": processes,
        "bound": lower_bound_bytes(items, int(size), processes),
        "seconds": seconds or None,
        "use": bandwidth_use(items, int(size), processes, seconds) if seconds else None,
        "link": link or None,
    }


def peak(scenario: Scenario) -> Answer:
    device = scenario.reader.table("device")
    device.need('name = "k80"')
    name, stated = device.get("name", toml.Name, ""), device.get("peak", toml.Flops, 0.0)
    models = scenario.reader.tables("models")
    scenario.finish(device)
    flops = stated or find_device(name).flops
    if not models:
        raise UsageError(f"{scenario.path} names no model: add [[models]] with name, and operations or model")
    return {"device": name, "flops": flops, "models": [_throughput(reader, flops) for reader in models]}


def _throughput(reader: toml.Reader, flops: float) -> Answer:
    """By stated operations, or those of a forward by the model's trace, where a multiply-add is two, as in a peak."""
    reader.need('name = "VGG-16"')
    name, operations = reader.get("name", toml.Name, ""), reader.get("operations", toml.Number, 0.0)
    model = reader.get("model", toml.Name, name)
    reader.finish()
    if "operations" in reader.values and not (operations > 0 and isfinite(operations)):
        raise reader.wrong("operations", operations, "an image takes more than 0, for example 3_922e6")
    if operations and "model" in reader.values:
        raise reader.wrong("model", model, "operations say it already; leave one of them out")
    if not operations:
        from paceline.costs.trace.trace import trace
        from paceline.jobs.build import traceable_of

        operations = 2 * trace(traceable_of(model), 1).multiply_adds
    seconds = operations / flops  # of an image
    return {"model": name, "operations": operations, "seconds": seconds, "rate": flops / operations}


def prediction(scenario: Scenario) -> "Prediction":
    from paceline.studies.predict import PredictRequest, predict

    reader = scenario.reader.table("predict")
    reader.need('model = "resnet50"', 'device = "k40"')
    settings: dict[str, Any] = {
        "cost_model": reader.get("cost-model", Literal["paceline", "paleo"], "paceline")
    }
    if settings["cost_model"] == "paleo":
        settings |= {
            "ppp_comp": reader.get("ppp-comp", toml.PositiveNumber, 1.0),
            "ppp_comm": reader.get("ppp-comm", toml.PositiveNumber, 1.0),
        }
    else:
        settings["strategies"] = reader.get("strategies", tuple[toml.Name, ...], ("all-reduce",))
    request = PredictRequest(
        model=reader.get("model", toml.Name, ""),
        device=reader.get("device", toml.Name, ""),
        network=reader.get("network", toml.Name, "10gbit"),
        workers=reader.get("workers", tuple[toml.Count, ...], ()) or None,
        batch_size=reader.get("batch", toml.Count, 32),
        scaling=reader.get("scaling", Literal["weak", "strong"], "weak"),
        **settings,
    )
    scenario.finish(reader)
    return predict(request)


def scaling(scenario: Scenario) -> Answer:
    """Measured epochs: compute is one worker's epoch over the workers, communicate is the rest."""
    from paceline.studies.calibrate.table import table_of

    measured = table_of(scenario.reader)
    points = []
    for point, seconds in sorted(measured.epochs.items()):
        compute, steps = measured.compute(point), measured.steps(point)
        rest, use = seconds - compute, None
        if point.workers > 1 and rest > 0:
            use = bandwidth_use(measured.parameters, ELEMENT, point.workers, rest / steps)
        one = {
            "workers": point.workers,
            "batch": point.batch,
            "seconds": seconds,
            "steps": steps,
            "speed_up": measured.alone(point.batch) / seconds,
            "compute": compute,
            "communicate": rest,
            "use": use,
        }
        points.append(one)
    head = {"model": measured.model, "parameters": measured.parameters, "samples": measured.samples}
    return {**head, "points": points}

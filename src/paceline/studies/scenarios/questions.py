"""Questions that a formula or another study answers: explain, lower-bound, peak, predict and scaling."""

from math import isfinite
from typing import TYPE_CHECKING, Any

from paceline.clusters.catalogue import find_device
from paceline.clusters.toml_reader import Reader
from paceline.collectives.traffic import bandwidth_use, lower_bound_bytes
from paceline.errors import UsageError
from paceline.studies.calibrate.table import table_of
from paceline.studies.scenarios.scenario import Answer, Scenario

if TYPE_CHECKING:  # it imports torch, which formulas do not need
    from paceline.studies.predict import Prediction

MOST = 1_000
"""Of anything that is counted; the report draws far less, and says how much, once it has begun."""
ELEMENT = 4


def read_request(scenario: Scenario) -> Answer:
    """The settings of [explain] by name; the report plays the collective."""
    reader = scenario.reader.table("explain")
    reader.need('schedule = "ring"')
    request: Answer = {"schedule": reader.word("schedule", ""), "op": reader.word("op", "sum")}
    rows = [
        " ".join(f"{number.number(place, 0.0):.17g}" for number, place in row.items(key))
        for row, key in reader.items("values")
    ]
    hosts = [str(number.whole(key, 0, most=MOST)) for number, key in reader.items("hosts")]
    request |= {"values": "; ".join(rows), "hosts": ",".join(hosts), "seed": reader.whole("seed", 0)}
    request |= {key: reader.whole(key, 0, most=MOST) for key in ("workers", "length", "segments")}
    scenario.finish(reader)
    return {key: value for key, value in request.items() if key in ("op", *reader.values)}


def least_traffic(scenario: Scenario) -> Answer:
    reader = scenario.reader.table("all-reduce")
    reader.need("items = 11_170_000", "processes = 4")
    items, processes = reader.whole("items", 0, least=1), reader.whole("processes", 0, least=1)
    size = reader.size("item", 4.0)
    if size < 1 or size != int(size):
        raise reader.wrong("item", reader.values["item"], "an item has a whole number of bytes, at least 1")
    seconds, link = reader.seconds("time", 0.0), reader.rate("bandwidth", 0.0)
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
    name, stated = device.word("name", ""), device.flops("peak", 0.0)
    models = scenario.reader.tables("models")
    scenario.finish(device)
    flops = stated or find_device(name).flops
    if not models:
        raise UsageError(f"{scenario.path} names no model: add [[models]] with name, and operations or model")
    return {"device": name, "flops": flops, "models": [_throughput(reader, flops) for reader in models]}


def _throughput(reader: Reader, flops: float) -> Answer:
    """By stated operations, or those of a forward by the model's trace, where a multiply-add is two, as in a peak."""
    reader.need('name = "VGG-16"')
    name, operations = reader.word("name", ""), reader.number("operations", 0.0)
    model = reader.word("model", name)
    reader.finish()
    if "operations" in reader.values and not (operations > 0 and isfinite(operations)):
        raise reader.wrong("operations", operations, "an image takes more than 0, for example 3_922e6")
    if operations and "model" in reader.values:
        raise reader.wrong("model", model, "operations say it already; leave one of them out")
    if not operations:
        from paceline.costs.trace.trace import (
            trace,  # these import torch, which stated operations do not need
        )
        from paceline.jobs.build import traceable_of

        operations = 2 * trace(traceable_of(model), 1).multiply_adds
    seconds = operations / flops  # of an image
    return {"model": name, "operations": operations, "seconds": seconds, "rate": flops / operations}


def prediction(scenario: Scenario) -> "Prediction":
    from paceline.studies.predict import PredictRequest, predict

    reader = scenario.reader.table("predict")
    reader.need('model = "resnet50"', 'device = "k40"')
    settings: dict[str, Any] = {"cost_model": _one_of(reader, "cost-model", "paceline", "paleo")}
    if settings["cost_model"] == "paleo":
        settings |= {
            "ppp_comp": reader.positive("ppp-comp", 1.0),
            "ppp_comm": reader.positive("ppp-comm", 1.0),
        }
    else:
        settings["strategies"] = tuple(reader.words("strategies", ["all-reduce"]))
    request = PredictRequest(
        model=reader.word("model", ""),
        device=reader.word("device", ""),
        network=reader.word("network", "10gbit"),
        workers=tuple(entry.whole(key, 0, least=1) for entry, key in reader.items("workers")) or None,
        batch_size=reader.whole("batch", 32, least=1),
        scaling=_one_of(reader, "scaling", "weak", "strong"),  # type: ignore[arg-type]
        **settings,
    )
    scenario.finish(reader)
    return predict(request)


def _one_of(reader: Reader, key: str, usual: str, other: str) -> str:
    value = reader.word(key, usual)
    if value not in (usual, other):
        raise reader.wrong(key, value, f'it must be "{usual}" or "{other}"')
    return value


def scaling(scenario: Scenario) -> Answer:
    """Measured epochs: compute is one worker's epoch over the workers, communicate is the rest."""
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

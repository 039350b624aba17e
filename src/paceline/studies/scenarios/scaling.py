"""``ask = "scaling"``: measured epochs as a scaling study prints them."""

from paceline.costs.bandwidth import bandwidth_use
from paceline.studies.calibrate.table import EpochTable, TablePoint, table_of
from paceline.studies.scenarios.answers import Scaling, ScalingPoint
from paceline.studies.scenarios.scenario import Scenario

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

"""From operators to seconds on one device: a worker's step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace
from paceline.records.spans import StepBreakdown


class DeviceModel(Protocol):
    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of (measured / predicted) of a whole step, from its own residuals."""

    @property
    def unmeasured(self) -> Mapping[str, float]:
        """Within a step: its operators that were never measured, and their share of the step's time."""
        return {}

    def within(self, trace: Trace) -> "DeviceModel":  # noqa: ARG002
        """The device in the midst of this step, where that makes a difference to it."""
        return self

    def seconds(self, operator: Operator) -> float:
        """How long one call takes, its overhead included; never less than the device's peak allows."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    samples: int
    step: StepBreakdown
    ready: tuple[float, ...]
    """One a parameter, in the model's order: the part of backward after which its gradient is complete, 0 to 1."""
    spread: float
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Operators that the device model never saw, by name: their share of the step's time."""


def accumulated(cost: StepCost, times: int) -> StepCost:
    """A step of ``times`` mini-batches, of which ``cost`` is one: only the last one's gradients are complete."""
    return replace(
        cost,
        samples=cost.samples * times,
        step=replace(cost.step * times, apply=cost.step.apply),
        ready=tuple((times - 1 + part) / times for part in cost.ready),
    )


def exposed_loading(load: float, loaders: int, rest: float) -> float:
    """Seconds of a step that wait for its data, which take ``load`` to be loaded.

    Loader processes load batches side by side, behind the ``rest`` of the step; without any the step loads its own.
    """
    return max(0.0, load / loaders - rest) if loaders else load


def step_cost(trace: Trace, device: DeviceModel) -> StepCost:
    device = device.within(trace)
    done = list(accumulate(map(device.seconds, trace.backward), initial=0.0))
    total = done[-1] or 1.0
    return StepCost(
        samples=trace.samples,
        step=StepBreakdown(
            forward=sum(map(device.seconds, trace.forward)),
            backward=done[-1],
            apply=sum(map(device.seconds, trace.apply)),
        ),
        ready=tuple(done[parameter.ready] / total for parameter in trace.parameters),
        spread=device.spread,
        unmeasured=device.unmeasured,
    )

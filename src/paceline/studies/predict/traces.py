"""Traces of one subject at many batch sizes, and where the time of a step goes, module by module."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace
from paceline.studies.predict.prediction import ModuleCost

SMALLEST = 2
"""A batch of one is a special case to some operators, so no line is drawn through it."""


class BatchTraces:
    """Traces on demand: a small and a large batch are traced, those in between are interpolated where possible.

    Whatever an operator counts is the same for every batch or grows in proportion to it, so that two traces give the
    line; where the two do not have the same operators, each batch is traced by itself.
    """

    def __init__(self, tracer: Callable[[int], Trace]) -> None:
        """``tracer`` traces a step on a number of samples."""
        self._tracer = tracer
        self._made: dict[int, Trace] = {}
        self._found: dict[int, Trace] = {}

    def trace(self, samples: int) -> Trace:
        if samples not in self._found:
            self._found[samples] = self._between(samples) or self._make(samples)
        return self._found[samples]

    def _between(self, samples: int) -> Trace | None:
        largest = max(self._made, default=0)
        if not SMALLEST < samples < largest:
            return None
        return interpolate(self._make(SMALLEST), self._make(largest), samples)

    def _make(self, samples: int) -> Trace:
        if samples not in self._made:
            self._made[samples] = self._tracer(samples)
        return self._made[samples]


def interpolate(small: Trace, large: Trace, samples: int) -> Trace | None:
    """The trace between two others; None where their operators differ."""
    part = (samples - small.samples) / (large.samples - small.samples)
    phases: dict[str, Any] = {}
    for phase in ("forward", "backward", "apply"):
        ends = getattr(small, phase), getattr(large, phase)
        if list(map(_identity, ends[0])) != list(map(_identity, ends[1])):
            return None
        pairs = zip(*ends, strict=True)
        scale = samples / large.samples
        phases[phase] = tuple(_operator(one, two, part, scale) for one, two in pairs)
    if small.parameters != large.parameters:
        return None
    inputs = round(small.inputs + (large.inputs - small.inputs) * part)
    return replace(large, samples=samples, inputs=inputs, **phases)


def _identity(operator: Operator) -> tuple[object, ...]:
    return operator.name, operator.kind, operator.module, type(operator.shape)


def _operator(one: Operator, two: Operator, part: float, scale: float) -> Operator:
    """The largest tensor is not linear: a weight with a small batch may be an activation with a large one."""
    found: Operator = _interpolated(one, two, part)
    return replace(found, elements=max(one.elements, round(two.elements * scale)))


def _interpolated(one: Any, two: Any, part: float) -> Any:
    """A value of the same form with every number on its line."""
    if one is None or isinstance(one, (bool, str)):
        return one
    if isinstance(one, int):
        return round(one + (two - one) * part)
    if isinstance(one, float):
        return one + (two - one) * part
    names = [field.name for field in fields(one)]
    return type(one)(**{name: _interpolated(getattr(one, name), getattr(two, name), part) for name in names})


def module_costs(
    trace: Trace, seconds: Callable[[Operator], float], mini_batches: int = 1
) -> tuple[ModuleCost, ...]:
    """The modules in the order in which forward enters them; the optimizer belongs to none of them."""
    modules: dict[str, list[Operator]] = {}
    for operator in (*trace.forward, *trace.backward):
        modules.setdefault(operator.module, []).append(operator)
    times = {module: _phases(operators, seconds) for module, operators in modules.items()}
    whole = sum(map(sum, times.values())) or 1.0
    return tuple(
        ModuleCost(
            module=module or "(model)",
            kinds=", ".join(dict.fromkeys(operator.kind for operator in operators)),
            flops=mini_batches * sum(operator.flops for operator in operators),
            bytes=float(mini_batches * sum(operator.read + operator.written for operator in operators)),
            forward=mini_batches * times[module][0],
            backward=mini_batches * times[module][1],
            share=sum(times[module]) / whole,
        )
        for module, operators in modules.items()
    )


def _phases(operators: Iterable[Operator], seconds: Callable[[Operator], float]) -> tuple[float, float]:
    spent = {"forward": 0.0, "backward": 0.0}
    for operator in operators:
        spent[operator.phase] += seconds(operator)
    return spent["forward"], spent["backward"]

"""Traces of one subject at many batch sizes, from two of them."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace

Tracer = Callable[[int], Trace]
"""From a number of samples to the trace of a step on them."""

SMALLEST = 2
"""A batch of one is a case of its own to some operators, so no line is drawn through it."""


class Batches:
    """Traces on demand: a small and a large one are made, those in between follow from them where they can.

    Whatever an operator counts is the same for every batch or grows in proportion to it, so that two traces give the
    line; where the two are not the same operators, each batch is traced by itself.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._made: dict[int, Trace] = {}
        self._found: dict[int, Trace] = {}

    def trace(self, samples: int) -> Trace:
        """The trace of a step on so many samples."""
        if samples not in self._found:
            self._found[samples] = self._between(samples) or self._make(samples)
        return self._found[samples]

    def _between(self, samples: int) -> Trace | None:
        largest = max(self._made, default=0)
        if not SMALLEST < samples < largest:
            return None
        return on_line(self._make(SMALLEST), self._make(largest), samples)

    def _make(self, samples: int) -> Trace:
        if samples not in self._made:
            self._made[samples] = self._tracer(samples)
        return self._made[samples]


def on_line(small: Trace, large: Trace, samples: int) -> Trace | None:
    """The trace between two others; None where they are not of the same operators."""
    part = (samples - small.samples) / (large.samples - small.samples)
    phases: dict[str, Any] = {}
    for phase in ("forward", "backward", "apply"):
        ends = getattr(small, phase), getattr(large, phase)
        if list(map(_place, ends[0])) != list(map(_place, ends[1])):
            return None
        pairs = zip(*ends, strict=True)
        scale = samples / large.samples
        phases[phase] = tuple(_operator(one, two, part, scale) for one, two in pairs)
    if small.parameters != large.parameters:
        return None
    inputs = round(small.inputs + (large.inputs - small.inputs) * part)
    return replace(large, samples=samples, inputs=inputs, **phases)


def _place(operator: Operator) -> tuple[object, ...]:
    return operator.name, operator.kind, operator.module, type(operator.shape)


def _operator(one: Operator, two: Operator, part: float, scale: float) -> Operator:
    """The largest tensor is no line: a weight with a small batch may be an activation with a large one."""
    found: Operator = _on_line(one, two, part)
    return replace(found, elements=max(one.elements, round(two.elements * scale)))


def _on_line(one: Any, two: Any, part: float) -> Any:
    """A value of the same form with every number on its line."""
    if one is None or isinstance(one, (bool, str)):
        return one
    if isinstance(one, int):
        return round(one + (two - one) * part)
    if isinstance(one, float):
        return one + (two - one) * part
    names = [field.name for field in fields(one)]
    return type(one)(**{name: _on_line(getattr(one, name), getattr(two, name), part) for name in names})

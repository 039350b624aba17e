"""Traces of one subject at many batch sizes, from two of them."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace

Tracer = Callable[[int], Trace]
"""From a number of samples to the trace of a step on them."""


class Batches:
    """Traces on demand: the first two are made, all others follow from these where they can.

    Whatever an operator counts is either the same for every batch or grows in proportion to it, so that two traces
    give the line; where the two are not the same operators, each batch is traced by itself.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._made: dict[int, Trace] = {}
        self._found: dict[int, Trace] = {}

    def trace(self, samples: int) -> Trace:
        """The trace of a step on so many samples."""
        if samples not in self._found:
            self._found[samples] = self._find(samples)
        return self._found[samples]

    def _find(self, samples: int) -> Trace:
        # A batch of one is a case of its own to some operators, so no line is drawn through it.
        known = [trace for size, trace in self._made.items() if size > 1]
        if samples > 1 and len(known) >= 2:
            line = on_line(known[0], known[1], samples)
            if line is not None:
                return line
        self._made[samples] = self._tracer(samples)
        return self._made[samples]


def on_line(one: Trace, two: Trace, samples: int) -> Trace | None:
    """The trace that lies on the line through two others; None where they are not of the same operators."""
    part = (samples - one.samples) / (two.samples - one.samples)
    phases: dict[str, Any] = {}
    for phase in ("forward", "backward", "apply"):
        pairs = list(zip(getattr(one, phase), getattr(two, phase), strict=False))
        if len(getattr(one, phase)) != len(getattr(two, phase)) or not all(_alike(*pair) for pair in pairs):
            return None
        phases[phase] = tuple(_between(first, second, part) for first, second in pairs)
    if one.parameters != two.parameters:
        return None
    return replace(one, samples=samples, **phases)


def _alike(one: Operator, two: Operator) -> bool:
    return _place(one) == _place(two)


def _place(operator: Operator) -> tuple[object, ...]:
    return operator.name, operator.kind, operator.module, type(operator.shape)


def _between(one: Any, two: Any, part: float) -> Any:
    """A value of the same form with every number on its line."""
    if one is None or isinstance(one, (bool, str)):
        return one
    if isinstance(one, int):
        return round(one + (two - one) * part)
    if isinstance(one, float):
        return one + (two - one) * part
    names = [field.name for field in fields(one)]
    return type(one)(**{name: _between(getattr(one, name), getattr(two, name), part) for name in names})

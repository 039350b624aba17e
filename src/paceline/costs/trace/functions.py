"""The operators of a plain function of tensors, without values."""

from collections.abc import Callable
from typing import TypeVar

import torch

from paceline.costs.trace.memory import Held
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.recorder import Recorder
from paceline.costs.trace.tracer import without_values

T = TypeVar("T")


def trace_function(function: Callable[[], T]) -> tuple[T, list[Operator]]:
    """Call a function under ``torch.device("meta")``: what it returned, and the operators that it called."""
    recorder = Recorder(without_values, Held())
    with torch.device("meta"), recorder, torch.no_grad():
        recorder.phase = "forward"
        result = function()
    return result, [operator for operator, _ in recorder.calls["forward"]]

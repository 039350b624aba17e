"""The operators of a training step that runs for real, timed."""

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch._ops import OpOverload

from paceline.costs.trace.operator import PHASES, Operator
from paceline.costs.trace.recorder import OperatorRecorder
from paceline.costs.trace.trace import TracedStep
from paceline.jobs.job import Traceable


def time_operators(
    subject: Traceable, samples: int, *, warm_up: int = 1, repeats: int = 3
) -> list[tuple[Operator, float]]:
    """Run a few steps on the CPU, and say for each operator of a step the median of its seconds."""
    recorder = OperatorRecorder(timed)
    with torch.device("cpu"), recorder:
        step = TracedStep(subject, samples, recorder)
        for _ in range(warm_up):
            step.run()
        runs = []
        for _ in range(repeats):
            step.run()
            runs.append([call for phase in PHASES for call in recorder.calls[phase]])
    return [(calls[0][0], median(seconds for _, seconds in calls)) for calls in zip(*runs, strict=True)]


def timed(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    begin = perf_counter()
    result = function(*args, **kwargs)
    return result, perf_counter() - begin

"""How long each operator of a training step takes on a real device."""

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch._ops import OpOverload

from paceline.costs.trace.operator import Operator, Phase
from paceline.costs.trace.recorder import Recorder, Run
from paceline.costs.trace.step import Step
from paceline.jobs.subject import Subject

PHASES: tuple[Phase, ...] = ("forward", "backward", "apply")


def time_operators(
    subject: Subject, samples: int, *, device: str = "cpu", warm_up: int = 1, repeats: int = 3
) -> list[tuple[Operator, float]]:
    """Run a few steps, and say for each operator of a step the median of its seconds.

    A call's seconds include torch's way from Python to the kernel, a few microseconds. The operators are those of a
    trace, except where this device's torch takes another kernel.
    """
    recorder = Recorder(timed(torch.device(device)))
    with torch.device(device), recorder:
        step = Step(subject, samples, recorder)
        for _ in range(warm_up):
            step.run()
        runs = []
        for _ in range(repeats):
            step.run()
            runs.append([call for phase in PHASES for call in recorder.calls[phase]])
    return [(calls[0][0], median(seconds for _, seconds in calls)) for calls in zip(*runs, strict=True)]


def timed(device: torch.device) -> Run:
    """Run an operator as it is and measure it; on an accelerator, until it has finished."""
    wait = torch.accelerator.synchronize if device.type != "cpu" else _done

    def run(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
        wait()
        begin = perf_counter()
        result = function(*args, **kwargs)
        wait()
        return result, perf_counter() - begin

    return run


def _done() -> None:
    """A CPU's operators have finished when they return."""

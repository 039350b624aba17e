"""A training step of any model as operators, without weights, data or a device."""

from typing import Any

import torch
from torch._ops import OpOverload

from paceline.costs.trace.fused import FusedKernels
from paceline.costs.trace.memory import Held
from paceline.costs.trace.recorder import Recorder
from paceline.costs.trace.results import meta_result
from paceline.costs.trace.step import Step
from paceline.costs.trace.trace import Trace, TracedParameter
from paceline.errors import UsageError
from paceline.jobs.batches import tensors_of
from paceline.jobs.subject import Subject


def trace(subject: Subject, samples: int) -> Trace:
    """The operators of one step on so many samples: forward, loss, backward and the optimizer's step.

    Raises UsageError where the model cannot be run without values, naming the module and the line.
    """
    if samples < 1:
        raise UsageError(f"a step cannot be traced on {samples} samples; give at least 1")
    recorder = Recorder(without_values, Held())
    with torch.device("meta"), FusedKernels(), recorder:
        step = Step(subject, samples, recorder)
        step.run()
    return _trace(step)


def without_values(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    """An operator's result by its sizes alone."""
    return meta_result(function, args, kwargs), 0.0


def _trace(step: Step) -> Trace:
    forward, backward, apply = (
        tuple(operator for operator, _ in calls) for calls in step.recorder.calls.values()
    )
    return Trace(
        name=step.subject.name,
        samples=step.samples,
        forward=forward,
        backward=backward,
        apply=apply,
        parameters=tuple(
            # One that backward never reaches is ready when all are, as the live runtime treats it.
            TracedParameter(name, tuple(one.shape), step.ready.get(name, len(backward)))
            for name, one in step.parameters
        ),
        buffers=sum(one.numel() for one in step.model.buffers() if one.is_floating_point()),
        dtype=step.parameters[0][1].dtype,
        inputs=sum(one.nbytes for one in tensors_of(step.batch)),
        fixed=step.fixed,
        optimizer=step.update.held,
    )

"""A training step of any model as operators, traced without weights, data or a device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from paceline.costs.trace.fused import FusedKernels
from paceline.costs.trace.meta import meta_result
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.recorder import HeldMemory, OperatorRecorder
from paceline.costs.trace.step import TracedStep
from paceline.errors import UsageError
from paceline.jobs.batches import tensors_of
from paceline.jobs.job import Job, Traceable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TracedParameter:
    """A trainable parameter."""

    name: str
    shape: tuple[int, ...]
    ready: int
    """How many operators of backward have run when its gradient is complete."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One step of one worker on ``samples`` samples; operators in the order in which they run."""

    name: str
    samples: int
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    apply: tuple[Operator, ...]
    parameters: tuple[TracedParameter, ...]
    """In the model's own order."""
    buffers: int
    """Elements of the floating-point buffers."""
    dtype: torch.dtype
    inputs: int = 0
    """Bytes of the mini-batch."""
    fixed: int = 0
    """Bytes of buffers, and of parameters that are not trained."""
    optimizer: int = 0
    """Bytes that the optimizer keeps from step to step."""

    @property
    def operators(self) -> Sequence[Operator]:
        return (*self.forward, *self.backward, *self.apply)

    def held(self, *, mixed: bool = False) -> int:
        """The most bytes that the step's tensors occupy at a time, the mini-batch among them."""
        return self.inputs + max((one.held_mixed if mixed else one.held for one in self.operators), default=0)

    @property
    def heap(self) -> int:
        """The most bytes of them that a CPU's allocator keeps in its heap at a time."""
        return max((one.held_heap for one in self.operators), default=0)

    @property
    def size(self) -> int:
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def multiply_adds(self) -> float:
        """Of one sample's forward in convolutions, matrix products and attention, as papers count them."""
        counted = ("convolution", "product", "attention", "recurrence")
        return sum(one.flops for one in self.forward if one.kind in counted) / 2 / self.samples


def trace(job: Traceable | Job, samples: int) -> Trace:
    """The operators of one step on ``samples`` samples: forward, loss, backward and the optimizer's step.

    Raises UsageError where the model cannot be run without values, naming the module and the line.
    """
    if samples < 1:
        raise UsageError(f"a step cannot be traced on {samples} samples; give at least 1")
    recorder = OperatorRecorder(without_values, HeldMemory())
    with torch.device("meta"), FusedKernels(), recorder:
        step = TracedStep(job, samples, recorder)
        step.run()
    calls = {phase: tuple(operator for operator, _ in found) for phase, found in recorder.calls.items()}
    untrained = (one for one in step.model.parameters() if not one.requires_grad)
    return Trace(
        name=job.name,
        samples=samples,
        forward=calls["forward"],
        backward=calls["backward"],
        apply=calls["apply"],
        parameters=tuple(
            # One that backward never reaches is ready when all are, as the live runtime treats it.
            TracedParameter(name, tuple(one.shape), step.ready.get(name, len(calls["backward"])))
            for name, one in step.parameters
        ),
        buffers=sum(one.numel() for one in step.model.buffers() if one.is_floating_point()),
        dtype=step.parameters[0][1].dtype,
        inputs=sum(one.nbytes for one in tensors_of(step.batch)),
        fixed=sum(one.nbytes for one in (*step.model.buffers(), *untrained)),
        optimizer=step.update.held,
    )


def without_values(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    return meta_result(function, args, kwargs), 0.0


def trace_function(function: Callable[[], T]) -> tuple[T, list[Operator]]:
    """Call a function under ``torch.device("meta")``: what it returned, and the operators that it called."""
    recorder = OperatorRecorder(without_values, HeldMemory())
    with torch.device("meta"), recorder, torch.no_grad():
        recorder.phase = "forward"
        result = function()
    return result, [operator for operator, _ in recorder.calls["forward"]]

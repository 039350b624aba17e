"""A training step of any model as operators: traced without weights, data or a device, or timed on one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from paceline.costs.trace.fused import FusedKernels
from paceline.costs.trace.operator import Operator, Phase
from paceline.costs.trace.recorder import HeldMemory, OperatorRecorder, Run
from paceline.costs.trace.results import meta_result
from paceline.costs.trace.step import TracedStep
from paceline.errors import UsageError
from paceline.jobs.batches import tensors_of
from paceline.jobs.job import Job, Traceable


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
    """The optimizer's."""
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

    def held(self, *, mixed: bool = False) -> int:
        """The most bytes that the step's tensors occupy at a time, the mini-batch among them."""
        return self.inputs + max((one.held_mixed if mixed else one.held for one in self._all), default=0)

    @property
    def heap(self) -> int:
        """The most bytes of them that a CPU's allocator keeps in its heap at a time."""
        return max((one.held_heap for one in self._all), default=0)

    @property
    def _all(self) -> Sequence[Operator]:
        return (*self.forward, *self.backward, *self.apply)

    def operators(self, phase: Phase) -> Sequence[Operator]:
        found: Sequence[Operator] = getattr(self, phase)
        return found

    @property
    def size(self) -> int:
        return sum(parameter.elements for parameter in self.parameters)

    def flops(self, phase: Phase) -> float:
        return sum(operator.flops for operator in self.operators(phase))

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
    return _trace(step)


def without_values(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    return meta_result(function, args, kwargs), 0.0


def _trace(step: TracedStep) -> Trace:
    forward, backward, apply = (
        tuple(operator for operator, _ in calls) for calls in step.recorder.calls.values()
    )
    return Trace(
        name=step.job.name,
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


T = TypeVar("T")


def trace_function(function: Callable[[], T]) -> tuple[T, list[Operator]]:
    """Call a function under ``torch.device("meta")``: what it returned, and the operators that it called."""
    recorder = OperatorRecorder(without_values, HeldMemory())
    with torch.device("meta"), recorder, torch.no_grad():
        recorder.phase = "forward"
        result = function()
    return result, [operator for operator, _ in recorder.calls["forward"]]


PHASES: tuple[Phase, ...] = ("forward", "backward", "apply")


def time_operators(
    job: Traceable | Job, samples: int, *, device: str = "cpu", warm_up: int = 1, repeats: int = 3
) -> list[tuple[Operator, float]]:
    """Run a few steps, and say for each operator of a step the median of its seconds.

    A call's seconds include torch's way from Python to the kernel, a few microseconds. The operators are those of a
    trace, except where this device's torch takes another kernel.
    """
    recorder = OperatorRecorder(timed(torch.device(device)))
    with torch.device(device), recorder:
        step = TracedStep(job, samples, recorder)
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

"""A training step as a list of operators, and when each gradient is ready."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from paceline.costs.trace.operator import Operator, Phase


@dataclass(frozen=True, slots=True)
class TracedParameter:
    """A trainable parameter."""

    name: str
    shape: tuple[int, ...]
    ready: int
    """How many operators of backward have run when its gradient is complete."""

    @property
    def elements(self) -> int:
        """How many numbers it has."""
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
        """Those of a phase."""
        found: Sequence[Operator] = getattr(self, phase)
        return found

    @property
    def size(self) -> int:
        """Elements of all trainable parameters."""
        return sum(parameter.elements for parameter in self.parameters)

    def flops(self, phase: Phase) -> float:
        """Floating-point operations of a phase."""
        return sum(operator.flops for operator in self.operators(phase))

    @property
    def multiply_adds(self) -> float:
        """Of one sample's forward in convolutions, matrix products and attention, as papers count them."""
        counted = ("convolution", "product", "attention", "recurrence")
        return sum(one.flops for one in self.forward if one.kind in counted) / 2 / self.samples

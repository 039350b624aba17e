"""Rounds of workers that train apart: after which step they agree on which part of a model, and how it moves then.

When is pure arithmetic on the clock, so that a program may be started anew at any step, and all workers agree without
a message. What a worker has changed since it last took the model of all over is its outer gradient. The mean of these
over the workers is one step of the outer optimizer: SGD of rate 1, which makes the model the average of all workers',
or Nesterov momentum (DiLoCo; Douillard et al., 2023). All of it lies in ``me.state``, as vectors of which a fragment is
a slice.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from paceline.strategies.base import Worker
from paceline.strategies.effects import AllReduce

START, GRADIENT, VELOCITY, SENT, SAMPLES = (
    f"outer.{name}" for name in ("start", "gradient", "velocity", "sent", "samples")
)


@dataclass(frozen=True, kw_only=True)
class RoundSchedule:
    """Rounds of steps, each ``growth`` times as long as the one before until they are the longest.

    In each round every fragment is averaged once, at even distances; the last one when the round ends.
    """

    first: int
    growth: float = 1.0
    longest: int
    fragments: int = 1
    since: int = 0
    """The clock at which the first round begins."""

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The clock at the beginning and at the end of each round that is shorter than the longest."""
        lengths, length = [], float(self.first)
        while int(length) < self.longest and self.growth > 1:
            lengths.append(int(length))
            length *= self.growth
        return tuple(accumulate(lengths, initial=self.since))

    @property
    def settled(self) -> int:
        """The clock from which on all rounds are equally long."""
        return self._ends[-1]

    def due(self, clock: int) -> int | None:
        """The fragment that is averaged after the step that ends at this clock; None after most steps."""
        if clock <= self.since:
            return None
        begun, length = self._round(clock)
        fragment = -(-(clock - begun) * self.fragments // length)
        return fragment - 1 if begun + length * fragment // self.fragments == clock else None

    def _round(self, clock: int) -> tuple[int, int]:
        """When the round of the step that ends at this clock began, and how many steps it has."""
        ends = self._ends
        if clock > ends[-1]:
            return clock - 1 - (clock - 1 - ends[-1]) % self.longest, self.longest
        place = bisect_right(ends, clock - 1)
        return ends[place - 1], ends[place] - ends[place - 1]


@dataclass(frozen=True, kw_only=True)
class OuterOptimizer:
    """SGD with Nesterov momentum on the outer model, as ``torch.optim.SGD(nesterov=True)`` has it."""

    rate: float = 1.0
    momentum: float = 0.0
    fragments: int = 1
    overlaps: bool = False
    """Whether workers train on while their outer gradients are averaged."""

    def begin(self, me: Worker) -> None:
        """All workers hold the same parameters; where a run goes on, the state is there already."""
        if START in me.state:
            return
        kept = [START, GRADIENT, *[VELOCITY] * bool(self.momentum), *[SENT] * self.overlaps]
        for name in kept:
            me.state[name] = me.params.clone() if name == START else me.params.new_zeros(me.params.numel())
        me.state[SAMPLES] = torch.zeros(self.fragments, dtype=torch.int64)

    def gradient(self, me: Worker, fragment: int) -> AllReduce:
        """The mean of the outer gradients of a fragment, by the samples since it was last averaged."""
        parts = me.params.tensor_split(self.fragments)
        gradient, samples = self._part(me, GRADIENT, fragment), me.state[SAMPLES]
        gradient.copy_(self._part(me, START, fragment)).sub_(parts[fragment])
        if self.overlaps:
            self._part(me, SENT, fragment).copy_(parts[fragment])
        samples += me.samples_since_sync
        weight, samples[fragment] = int(samples[fragment]), 0
        return AllReduce(gradient, weight=weight, offset=sum(part.numel() for part in parts[:fragment]))

    def step(self, me: Worker, fragment: int) -> None:
        """Move the outer model along the mean gradient, and the worker's own parameters with it.

        What the worker has learnt since it sent its gradient stays.
        """
        start, gradient = self._part(me, START, fragment), self._part(me, GRADIENT, fragment)
        if self.momentum:
            velocity = self._part(me, VELOCITY, fragment)
            velocity.mul_(self.momentum).add_(gradient)
            gradient.add_(velocity, alpha=self.momentum)
        start.sub_(gradient, alpha=self.rate)
        params = me.params.tensor_split(self.fragments)[fragment]
        if self.overlaps:
            params.add_(start - self._part(me, SENT, fragment))
        else:
            params.copy_(start)

    def _part(self, me: Worker, name: str, fragment: int) -> Tensor:
        return me.state[name].tensor_split(self.fragments)[fragment]

"""Local SGD and its descendants: workers train apart, and agree now and then."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Annotated, Literal

import torch

from paceline.errors import UsageError
from paceline.specs.ranges import AtLeastOne, Fraction, Positive, Range, at_least
from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    BucketedMean,
    Gradient,
    Program,
    StartAllReduce,
    Wait,
)
from paceline.strategies.rounds import OuterOptimizer, RoundSchedule
from paceline.units import Period, Share

GROWTH = Range(
    "1 for rounds of one length, or 1.01 to 1000", lambda value: value == 1 or 1.01 <= value <= 1000
)
PACE = "local.pace"
"""Of a period that adapts: its steps, the clock and the time when it began, and what the last exchange took."""


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy):
    """Each worker trains alone; their models are averaged once a period (Stich, 2019)."""

    period: Period = Period(steps=16)
    """Steps between averages (16) or time (0.5s); 1 is synchronous SGD, more means less traffic and more drift."""
    outer: Literal["average", "nesterov"] = "average"
    """What a round does to the model of all: it becomes the average, or takes a step of Nesterov SGD towards it."""
    outer_lr: Positive | None = None
    """With outer=nesterov, the part of the way to the average that a round goes; 0.7 unless given."""
    outer_momentum: Fraction | None = None
    """With outer=nesterov, how much of the way of earlier rounds goes on; 0.9 unless given, and 0 is none."""
    growth: Annotated[float, GROWTH] = 1.0
    """How many times as long as the one before a round is; more saves more traffic as training goes on."""
    longest: AtLeastOne | None = None
    """With growth, the steps of the longest round."""
    overlap: Annotated[int, at_least(0)] = 0
    """Steps that go on while an average is under way; more hides slower links and works on older averages."""
    fragments: AtLeastOne = 1
    """Parts of the model that are averaged one after the other in a period; more keeps the link busy more evenly."""
    comm: Share = Share(0)
    """The share of the time for exchanges (5%) to which the period adapts, from the given one on; 0 keeps it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, gap = self.period.steps, self.period.steps // self.fragments
        for wrong, sentence in (
            (
                self.outer == "average" and (self.outer_lr, self.outer_momentum) != (None, None),
                "outer_lr and outer_momentum are of the outer Nesterov optimizer, and outer=average has none; choose "
                "outer=nesterov, or leave them out",
            ),
            (
                not steps and (self._by_rounds or self.comm),
                f"{self._changing} counts steps, and period={self.period} is a time; give the period in steps",
            ),
            (
                self.comm and self._by_rounds,
                f"comm={self.comm} finds the period as it goes, and {self._changing} needs one that is known; leave "
                "one of them out",
            ),
            (
                (self.growth > 1) != (self.longest is not None),
                f"growth={self.growth:g} and longest={self.longest} go together: give both, such as "
                "growth=2,longest=256, or none",
            ),
            (
                self.longest is not None and self.longest < steps,
                f"longest={self.longest} is shorter than the first round, period={self.period}; give at least as much",
            ),
            (
                steps and self.fragments > steps,
                f"fragments={self.fragments} are more than the steps of period={self.period}, and each is averaged "
                "after a step of its own; choose fewer, or a longer period",
            ),
            (
                steps and self.fragments <= steps and self.overlap > gap,
                f"overlap={self.overlap} is longer than the {gap} steps from one average to the next with "
                f"period={self.period} and fragments={self.fragments}; choose at most {gap}, or a longer period",
            ),
        ):
            if wrong:
                raise UsageError(sentence)

    @property
    def _by_rounds(self) -> bool:
        return bool(self.overlap) or self.fragments > 1 or self.growth > 1

    @property
    def _changing(self) -> str:
        """The setting that goes with a period of so many steps only."""
        if self.comm and not self.period.steps:
            return f"comm={self.comm}"
        if self.overlap:
            return f"overlap={self.overlap}"
        return f"growth={self.growth:g}" if self.growth > 1 else f"fragments={self.fragments}"

    @property
    def sync_point(self) -> SyncPoint:
        """By steps, all workers count alike; by seconds, a fast worker takes more steps in a round than a slow one."""
        return SyncPoint.EVERY_STEP if self.period.steps else SyncPoint.AFTER_ROUND

    @property
    def apart_since(self) -> int:
        """The clock from which on workers train apart."""
        return 0

    @property
    def settled(self) -> int:
        return self._rounds.settled if self._by_rounds else self.apart_since

    @property
    def regular(self) -> bool:
        return not self.comm

    @cached_property
    def _rounds(self) -> RoundSchedule:
        steps = self.period.steps
        return RoundSchedule(
            first=steps,
            growth=self.growth,
            longest=self.longest or steps,
            fragments=self.fragments,
            since=self.apart_since,
        )

    @cached_property
    def _optimizer(self) -> OuterOptimizer | None:
        """What makes the next model of all from the outer gradients; None where models themselves are averaged."""
        outer = OuterOptimizer(fragments=self.fragments, overlaps=bool(self.overlap))
        if self.outer == "nesterov":
            rate = 0.7 if self.outer_lr is None else self.outer_lr
            momentum = 0.9 if self.outer_momentum is None else self.outer_momentum
            return replace(outer, rate=rate, momentum=momentum)
        return outer if self.overlap or self.fragments > 1 else None

    def worker(self, me: Worker) -> Program:
        if self._optimizer:
            self._optimizer.begin(me)
        if self.comm:
            yield from self._in_a_share_of_the_time(me)
        if self._by_rounds:
            yield from self._in_rounds(me)
        begun = me.now
        while True:
            yield Gradient()
            yield Apply()
            if self.period.is_over(me.clock - self.apart_since, me.now - begun):
                yield from self._average(me)
                begun = me.now

    def _in_rounds(self, me: Worker) -> Program:
        """Average fragments in turn, in rounds that may grow; an average is taken over ``overlap`` steps later."""
        due, outer = self._rounds.due, self._optimizer
        while True:
            yield Gradient()
            yield Apply()
            if self.overlap and (fragment := due(me.clock - self.overlap)) is not None:
                assert outer is not None, "late averages keep what was learnt meanwhile"
                yield Wait()
                outer.step(me, fragment)
            if (fragment := due(me.clock)) is not None:
                yield from self._average(me, fragment)

    def _in_a_share_of_the_time(self, me: Worker) -> Program:
        """Average when exchanges take their share of the time; all workers agree on what they have measured."""
        first = torch.tensor([self.period.steps, me.clock, me.now, 0.0], dtype=torch.float64)
        pace = me.state.setdefault(PACE, first)
        while True:
            yield Gradient()
            yield Apply()
            steps, begun, since, exchange = pace.tolist()
            if me.clock < begun + steps:
                continue
            times = torch.tensor([me.now - since, exchange], dtype=torch.float64)
            yield AllReduce(times)  # for which all wait, so that what follows is the exchange alone
            before = me.now
            yield from self._average(me)
            steps = self._next_period(steps, *times.tolist())
            pace.copy_(torch.tensor([steps, me.clock, me.now, me.now - before], dtype=torch.float64))

    def _next_period(self, steps: float, seconds: float, exchange: float) -> float:
        """After how many steps an exchange is at most its share; a round is at most 4 times as long as the last."""
        if not seconds or not exchange:
            return steps
        wanted = exchange * (1 / self.comm - 1) / (seconds / steps)
        return float(ceil(min(4 * steps, max(steps / 4, wanted))))

    def _average(self, me: Worker, fragment: int = 0) -> Program:
        """The workers' models, or a fragment of them, become one: now, or while they train on."""
        outer = self._optimizer
        if outer is None:
            yield AllReduce(me.params, weight=me.samples_since_sync)
            return
        mean = outer.gradient(me, fragment)
        if self.overlap:
            yield StartAllReduce(mean.tensor, mean.weight, offset=mean.offset)
            return
        yield mean
        outer.step(me, fragment)

    def central(self, me: Worker) -> Program:
        """The average of the replicas, whether or not a round has just ended."""
        average = me.params.clone()
        yield AllReduce(average, weight=max(1, me.samples_since_sync))
        return average


@dataclass(frozen=True, kw_only=True)
class DiLoCo(LocalSGD):
    """Long rounds apart, each one step of an outer Nesterov optimizer (Douillard et al., 2023)."""

    period: Period = Period(steps=500)
    outer: Literal["average", "nesterov"] = "nesterov"
    outer_lr: Positive | None = 0.7
    outer_momentum: Fraction | None = 0.9


@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Synchronous SGD first, then local SGD (Lin et al., 2020)."""

    switch: AtLeastOne = 500
    """Steps of synchronous SGD before workers train apart; more costs traffic where the model still changes fast."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.period.steps:
            raise UsageError(
                f"post-local counts the steps of all workers alike, and period={self.period} is a time; give it in "
                "steps, or choose local-sgd"
            )

    @property
    def apart_since(self) -> int:
        return self.switch

    def worker(self, me: Worker) -> Program:
        while me.clock < self.switch:
            yield Gradient(reduce=BucketedMean())
            yield Apply()
            if me.clock == self.switch:
                yield Broadcast(me.params)  # from which differences are counted from now on
        yield from super().worker(me)

    def central(self, me: Worker) -> Program:
        if me.clock <= self.switch:
            return me.params  # all replicas are the same
        average = yield from super().central(me)
        return average

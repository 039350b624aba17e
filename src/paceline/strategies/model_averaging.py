"""Model averaging: learners train apart and are pulled towards a central model, which is the one that counts.

Each worker trains several learners on mini-batches of their own; ``me.params`` has a row for each. With k learners on
all workers together and learning rate eta, a step is

    c_j = alpha (w_j - z)                                  the correction of learner j
    w_j <- w_j - eta g_j - c_j
    z   <- z + sum_j c_j + momentum (z - z_previous)       the central model

One learner alone has no other to be averaged with: it is plain training, and z is its model. (By the formula, with
alpha = 1, it would change places with z at every step.)
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from paceline.specs.ranges import AtLeastOne, Fraction, Ratio
from paceline.strategies.base import LearnerPlan, Strategy, SyncPoint, Worker
from paceline.strategies.effects import AllReduce, Apply, Gradient, Program

CENTRE, PREVIOUS, HIGHEST_RATE = "z", "z_previous", "highest_rate"
"""Names in ``me.state``."""


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(Strategy):
    """What SMA and EASGD share: they differ in their defaults."""

    learners: AtLeastOne | Literal["auto"] = 4
    """Models that each worker trains, each on batches of its own; auto takes as many as raise the throughput."""
    compute: Literal["auto", "together", "in-turn"] = "auto"
    """How a worker computes its learners' gradients: together is faster for small models and batches."""
    pull: Ratio = 1.0
    """By how much of the distance to the learners' mean z moves, so that alpha = pull/k; less averages more slowly."""
    momentum: Fraction = 0.9
    """How much of its last move z goes on; more follows the learners faster, and overshoots sooner."""
    period: AtLeastOne = 1
    """Steps between corrections; more means less traffic, and learners that drift further apart."""
    restart: Fraction = 0.5
    """Learners start again from z when the learning rate has fallen to this part of what it was; 0 is never."""
    sync_point = SyncPoint.EVERY_STEP

    @property
    def learner_plan(self) -> LearnerPlan:
        count = None if self.learners == "auto" else self.learners
        return LearnerPlan(count=count, compute="in-turn" if count == 1 else self.compute)

    def with_learners(self, plan: LearnerPlan) -> Self:
        assert plan.count is not None, "decided"
        return replace(self, learners=plan.count, compute=plan.compute)

    def worker(self, me: Worker) -> Program:
        learners = _rows(me.params)
        everyone = me.workers * len(learners)
        z, previous = _central_models(me, learners)
        while True:
            yield Gradient()
            if everyone == 1 or (me.clock + 1) % self.period:
                yield Apply()
                continue
            corrections = (learners - z).mul_(self.pull / everyone)
            yield Apply()
            learners.sub_(corrections)
            total = corrections.sum(0)
            yield AllReduce(total, op="sum")
            move = (z - previous).mul_(self.momentum).add_(total)
            previous.copy_(z)
            z.add_(move)
            if self._restarts(me):
                learners.copy_(z)
                previous.copy_(z)

    def _restarts(self, me: Worker) -> bool:
        """Whether the learning rate has fallen far enough from its highest value since the last restart."""
        highest = me.state[HIGHEST_RATE]
        highest.clamp_(min=me.rate_factor)
        if not self.restart or me.rate_factor > self.restart * highest.item():
            return False
        highest.fill_(me.rate_factor)
        return True

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params.view(-1) if me.workers * len(_rows(me.params)) == 1 else me.state[CENTRE]


@dataclass(frozen=True, kw_only=True)
class SynchronousModelAveraging(ModelAveraging):
    """Several learners a worker, averaged at every step, with momentum (CROSSBOW's SMA; Koliousis et al., 2019)."""


@dataclass(frozen=True, kw_only=True)
class ElasticAveraging(ModelAveraging):
    """Learners on an elastic band to a central model, corrected once a period (EASGD; Zhang et al., 2015)."""

    pull: Ratio = 0.9
    """The paper's beta, so that alpha = pull/k; less lets the learners explore further."""
    momentum: Fraction = 0.0
    """How much of its last move z goes on; the paper's z has none."""
    period: AtLeastOne = 10
    """Steps between corrections (tau); more means less traffic, and learners that drift further apart."""
    restart: Fraction = 0.0
    """Learners start again from z when the learning rate has fallen to this part of what it was; 0 is never."""


def _rows(params: Tensor) -> Tensor:
    return params.view(-1, params.shape[-1])


def _central_models(me: Worker, learners: Tensor) -> tuple[Tensor, Tensor]:
    """The central model, and what it was before the last correction; all learners begin as it does."""
    if CENTRE not in me.state:
        me.state[CENTRE], me.state[PREVIOUS] = learners[0].clone(), learners[0].clone()
        me.state[HIGHEST_RATE] = torch.zeros(1, dtype=torch.float64)
    return me.state[CENTRE], me.state[PREVIOUS]

"""Which candidates are worth a look: the Pareto front of time and cost, and the order under a deadline or a budget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from paceline.studies.plan.candidates import Candidate, Priced

ALIKE = 1.02
"""A candidate with more unknowns that is better by a smaller factor is not worth them."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A deadline in seconds, a budget, both or neither."""

    deadline: float | None = None
    budget: float | None = None

    @property
    def given(self) -> bool:
        return self.deadline is not None or self.budget is not None

    def in_time(self, one: Candidate) -> bool:
        return self.deadline is None or one.time <= self.deadline

    def affordable(self, one: Candidate) -> bool:
        return self.budget is None or one.cost <= self.budget

    def met_by(self, one: Candidate) -> bool:
        return self.in_time(one) and self.affordable(one)

    def excess(self, one: Candidate) -> float:
        """How many times as long as the deadline, or as dear as the budget, whichever is more."""
        return max(one.time / (self.deadline or inf), one.cost / (self.budget or inf))

    def rank(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that meet it: by cost under a deadline, by time under a budget alone; else the front."""
        if not self.given:
            return pareto_front(candidates)
        met = [one for one in candidates if self.met_by(one)]
        if self.deadline is None:
            return sorted(met, key=lambda one: (one.time, one.cost))
        return sorted(met, key=lambda one: (one.cost, one.time))

    def nearest(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The Pareto front, smallest excess first; some member of it has the smallest excess of all candidates."""
        return sorted(pareto_front(candidates), key=self.excess)


def without_dominated(priced: Iterable[Priced], aim: Aim) -> list[Priced]:
    """Leave out what has more unknowns than another one that is about as fast and as cheap.

    What meets the aim is only left out for another one that meets it too.
    """
    every = list(priced)

    def dominated(one: Candidate, by: Candidate) -> bool:
        plainer = {*by.unknowns} < {*one.unknowns}
        alike = by.time <= ALIKE * one.time and by.cost <= ALIKE * one.cost
        return plainer and alike and (aim.met_by(by) or not aim.met_by(one))

    return [one for one in every if not any(dominated(one.candidate, other.candidate) for other in every)]


def pareto_front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Fastest first: each is cheaper than every faster one, and none is both as fast and as cheap as another."""
    front: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (one.time, one.cost)):
        if not front or one.cost < front[-1].cost:
            front.append(one)
    return front


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of each hardware, number of workers, strategy and codec: others differ in the batch alone."""
    found: dict[tuple[str, int, str, str], Candidate] = {}
    for one in candidates:
        found.setdefault((one.hardware, one.workers, one.strategy, one.codec), one)
    return list(found.values())

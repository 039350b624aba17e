"""The steps of a question, each worked out once."""

from collections.abc import Callable
from dataclasses import replace

from paceline.studies.predict.base import Step
from paceline.studies.predict.model import ALIKE, Case
from paceline.studies.predict.question import Question

PERFECT = 1e-9
"""The part of its time that a transfer takes on links that are as good as perfect."""


Tell = Callable[[str], None]
"""Hears what is worked on, in words."""


def quiet(words: str) -> None:
    """Hears and says nothing."""


class Pricing:
    """Asks the cost model and remembers what it said."""

    def __init__(self, question: Question, tell: Tell = quiet) -> None:
        self.question, self._tell = question, tell
        self._steps: dict[Case, Step] = {}
        self._explained: dict[Case, Step] = {}
        self.alone = self.rate(replace(question.case(ALIKE, 1), servers=1))
        """Samples a second of one worker who trains alone."""

    def step(self, case: Case) -> Step:
        """The step of a case."""
        if case in self._explained:
            return self._explained[case]
        if case not in self._steps:
            self._say(case)
            self._steps[case] = self.question.model.step(case)
        return self._steps[case]

    def explained(self, case: Case) -> Step:
        """The same with what bounds it."""
        if case not in self._explained:
            self._say(case)
            self._explained[case] = self.question.model.explained(case)
        return self._explained[case]

    def _say(self, case: Case) -> None:
        """Only of numbers that were asked about; others are tried to find where something changes."""
        if case.workers in self.question.workers:
            self._tell(_words(case))

    def seconds(self, case: Case) -> float:
        """How long the step of a case takes."""
        return self.step(case).step

    def rate(self, case: Case) -> float:
        """Samples a second of all workers; where shares differ, not all have as many as the largest."""
        return self.step(case).rate * case.total / (case.workers * case.batch)

    def perfect(self, case: Case) -> float:
        """How long the step would take if transfers took no time."""
        return self.seconds(replace(case, links=PERFECT))


def _words(case: Case) -> str:
    return f"{case.strategy}, {case.workers:,} {'worker' if case.workers == 1 else 'workers'}"

"""Adds one worker's records up: the typical step, the first ones, and what lies outside of steps."""

from collections.abc import Sequence
from dataclasses import replace
from math import floor, log2

from paceline.records.spans import KINDS, StepBreakdown, StepRecord, Totals

PLACE = {kind: place for place, kind in enumerate(KINDS)}
COMPUTING = slice(PLACE["data"], PLACE["backward"] + 1)
WIDTH = len(KINDS)

_FINENESS = 16
"""Classes of length in an octave: steps that differ by less than 4 % may be in one."""

_Class = list[float]
"""A number of steps, then their seconds by kind and their hidden communication in sum."""


class TimeLedger:
    """Both runtimes count every step and every record outside of steps here, so both mean the same by a step.

    What is kept does not grow with the run: steps of about the same length that exchanged about as much are one class.
    """

    __slots__ = ("_classes", "_outside", "_sums", "_totals", "_warm_up", "starting")

    def __init__(self) -> None:
        self.starting = True
        """Whether what comes next, up to a step, belongs to the start; set again where a run resumes."""
        self._classes: dict[int, dict[int, _Class]] = {}
        self._warm_up = [0.0] * (WIDTH + 1)
        self._sums = [0.0] * WIDTH
        self._outside: dict[str, float] = {}
        self._totals = Totals()

    def add(self, record: StepRecord) -> None:
        seconds = [0.0] * WIDTH
        for kind, _, length in record.spans:
            seconds[PLACE[kind]] += length
        hidden = sum([span.length for span in record.hidden])
        self._totals.damaged += record.damaged
        traffic = record.sent, record.received
        if record.is_step:
            self.add_step(seconds, hidden, *traffic, record.samples, warm_up=record.warm_up)
        else:
            self.add_outside(seconds, *traffic)

    def add_step(
        self,
        seconds: Sequence[float],
        hidden: float,
        sent: int,
        received: int,
        samples: int,
        *,
        warm_up: bool = False,
    ) -> None:
        """Count a step by its seconds of each kind, in the order of KINDS."""
        totals = self._totals
        totals.steps += 1
        totals.samples += samples
        totals.step_sent += sent
        totals.sent += sent
        totals.received += received
        self.starting = False
        if warm_up:
            totals.warm_up_steps += 1
            totals.warm_up_samples += samples
            self._warm_up = [one + more for one, more in zip(self._warm_up, [*seconds, hidden], strict=True)]
            return
        exchanged = (sent + received).bit_length()
        if exchanged not in self._classes:
            self._classes[exchanged] = {}
        classes = self._classes[exchanged]
        length = sum(seconds)
        key = floor(_FINENESS * log2(length)) if length > 0 else -(10**6)
        if key not in classes:
            classes[key] = [1.0, *seconds, hidden]
            return
        found = classes[key]
        found[0] += 1
        for place, more in enumerate(seconds, start=1):
            found[place] += more
        found[-1] += hidden

    def add_outside(self, seconds: Sequence[float], sent: int, received: int) -> None:
        """Count what is no step: the start, an evaluation, a checkpoint, a step that was never finished."""
        self._totals.sent += sent
        self._totals.received += received
        whole = "unfinished" if any(seconds[COMPUTING]) else "start" if self.starting else None
        for place, length in enumerate(seconds):
            if length:
                cause = whole or KINDS[place]
                self._outside[cause] = self._outside.get(cause, 0.0) + length
                self._sums[place] += length

    def note_damage(self) -> None:
        self._totals.damaged += 1

    def totals(self) -> Totals:
        every = [one for classes in self._classes.values() for one in classes.values()]
        many, *steps = [sum(column) for column in zip(*every, strict=True)] or [0.0] * (WIDTH + 2)
        counted = self._totals
        typical = self._typical() if many else [one / max(1, counted.steps) for one in self._warm_up]
        sums = zip(steps[:WIDTH], self._warm_up[:WIDTH], self._sums, strict=True)
        return replace(
            counted,
            seconds=dict(zip(KINDS, map(sum, sums), strict=True)),
            in_steps=_breakdown(steps),
            in_warm_up=_breakdown(self._warm_up),
            outside=dict(self._outside),
            typical=_breakdown(typical),
        )

    def _typical(self) -> list[float]:
        """The middle half by length of the steps that exchange as much, and those by how many there are.

        All parts are means over the same steps, so they add up; a strategy that exchanges only now and then keeps
        the share of the steps in which it does.
        """
        found, many = [0.0] * (WIDTH + 1), 0.0
        for classes in self._classes.values():
            ordered = [classes[key] for key in sorted(classes)]
            count = sum(one[0] for one in ordered)
            many += count
            before = 0.0
            for number, *sums in ordered:
                inside = max(0.0, min(before + number, 0.75 * count) - max(before, 0.25 * count))
                before += number
                # Of the middle half, count / 2 steps, this class has so many; all of it stands for count steps.
                weight = 2 * inside / number
                found = [one + weight * more for one, more in zip(found, sums, strict=True)]
        return [one / many for one in found]


def _breakdown(seconds: Sequence[float]) -> StepBreakdown:
    """Of seconds by kind, in the order of KINDS, and then the hidden ones."""
    data, forward, backward, communicate, wait, apply, *others, hidden = seconds
    return StepBreakdown(data, forward, backward, communicate, wait, apply, sum(others), hidden)

"""A comparison for people: the answer and what explains it, what makes it doubtful, a table, what would help."""

from math import hypot, log, nan
from textwrap import wrap
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import to_document
from paceline.records.spans import StepBreakdown
from paceline.reports.findings import findings_document, findings_text
from paceline.reports.summary import PARTS
from paceline.reports.text import aligned, counted, ms_digits, percent
from paceline.studies.compare import SIGMAS, ComparedRun, Group, RunComparison, SpeedDifference, groups
from paceline.studies.findings import Finding, find
from paceline.units import show_bytes, show_seconds

SCHEMA = 1
WIDTH = 120
ROWS = {**PARTS, "communicate": "communicate (exposed)", "hidden": "hidden communication"}
"""As a run's own table has them, and what goes on behind backward, which is part of no sum."""


ALIKE = 1.1
"""Parts of a step that differ by less take as long: then the number of workers is what makes the difference."""


def findings_of(comparison: RunComparison) -> tuple[Finding, ...]:
    """Those of the slowest side, where it is a run and is slower by more than the spread."""
    side = comparison.slowest
    return find(side.run) if side and side.run else ()


def comparison_text(comparison: RunComparison) -> str:
    lines = [
        line for sentence in answers(comparison) for line in wrap(sentence, WIDTH, break_on_hyphens=False)
    ]
    if warned := warnings(comparison):
        lines += [
            "",
            *(line for one in warned for line in wrap(f"Note: {one}", WIDTH, break_on_hyphens=False)),
        ]
    lines += ["", *_legend(comparison), ""]
    lines += _table(comparison, "ms a step", [1e3] * len(comparison.sides), differs=comparison.same_batch)
    if not comparison.same_batch:
        unit, scales = _comparable(comparison)
        lines += ["", *_table(comparison, unit, scales, differs=True)]
    lines += ["", *wrap(_how(comparison), WIDTH)]
    if told := findings_text(
        findings_of(comparison), but=[doubt for side in comparison.sides for doubt in side.doubts]
    ):
        slowest = comparison.slowest
        lines += ["", f"{slowest.name if slowest else ''}:", told]
    return "\n".join(lines)


def answers(comparison: RunComparison) -> list[str]:
    """One a later side."""
    return [_answer(comparison, one) for one in comparison.differences]


def _answer(comparison: RunComparison, one: SpeedDifference) -> str:
    factor, word = (one.ratio, "slower") if one.ratio > 1 else (1 / one.ratio, "faster")
    per = "per step" if comparison.same_batch else "per epoch" if comparison.epoch else "per sample"
    if not one.significant:
        return (
            f"No difference that can be told from the spread: {_called(one.other)} is {factor:.2f}x {word} {per} than "
            f"{_called(one.first)}, and {_uncertain(one)}."
        )
    lost = "loss" if word == "slower" else "gain"
    cause, share = one.cause
    return (
        f"{_called(one.other)} is {factor:.2f}x {word} {per} than {_called(one.first)}. "
        f"{100 * share:.0f} % of the {lost} is {cause}: {_explained(one, cause, a_step=comparison.same_batch)}."
    )


def _uncertain(one: SpeedDifference) -> str:
    if one.spread is None:
        return "how much their steps vary is not known"
    predicted = "prediction" in (one.first.source, one.other.source)
    words = "what is predicted may be off" if predicted else "their steps vary"
    return f"{words} by {percent(round(SIGMAS * one.spread, 3))}"


def _called(side: ComparedRun) -> str:
    """A prediction's own name says how many workers it is of."""
    return side.name if side.source == "prediction" else f"{side.name} ({counted(side.workers, 'worker')})"


def _explained(one: SpeedDifference, cause: Group, *, a_step: bool) -> str:
    """What the cause is, in seconds a step, or a sample where steps have different batches."""
    slow, fast, diagnosis = one.slower, one.faster, one.slower.diagnosis
    if cause == "a slow rank" and diagnosis:
        seen = diagnosis.seen
        return f"rank {seen.slowest} computes {seen.slowdown:.2g}x as long as the others, which wait for it"
    if cause == "communication":
        sends = f"a worker sends {show_bytes(slow.sent)} a step (predicted)"
        return f"in {slow.name}, {diagnosis.exchange if diagnosis else sends}"
    steps = [groups(side.step).get(cause, 0.0) for side in (slow, fast)]
    if cause in ("computing", "data") and slow.workers < fast.workers and steps[0] <= ALIKE * steps[1]:
        return f"{counted(fast.workers, 'worker')} share it, which {counted(slow.workers, 'worker')} did in {slow.name}"
    took = steps if a_step else [groups(side.sample).get(cause, 0.0) for side in (slow, fast)]
    against = f"{show_seconds(took[0])} a {'step' if a_step else 'sample'} against {show_seconds(took[1])}"
    words: dict[Group, str] = {
        "waiting": "ranks wait for each other",
        "computing": "forward, backward and the optimizer take",
    }
    return f"{words.get(cause, 'it takes')} {against}"


def warnings(comparison: RunComparison) -> list[str]:
    """What makes the comparison doubtful, a sentence each."""
    first = comparison.sides[0]
    found = [
        f"{name} differs: {value} in {other.name}, {expected} in {first.name}."
        for name, other, value, expected in comparison.unlike
    ]
    return found + [f"{side.name}: {doubt}" for side in comparison.sides for doubt in side.doubts]


def _legend(comparison: RunComparison) -> list[str]:
    return [
        f"{letter} = {side.name}" for letter, side in zip(_letters(comparison), comparison.sides, strict=True)
    ]


def _letters(comparison: RunComparison) -> list[str]:
    return [
        chr(ord("A") + place % 26) + (str(place // 26) if place > 25 else "")
        for place in range(len(comparison.sides))
    ]


def _comparable(comparison: RunComparison) -> tuple[str, list[float]]:
    """A unit in which sides of different global batches can be compared, and what a step's seconds are in it."""
    samples, unit = (comparison.epoch, "s an epoch") if comparison.epoch else (1e6, "us a sample")
    scales = [samples / side.samples for side in comparison.sides]
    if (
        comparison.epoch
        and min(one.step.total * each for one, each in zip(comparison.sides, scales, strict=True)) < 1
    ):
        unit, scales = "ms an epoch", [1e3 * each for each in scales]
    return unit, scales


def _table(comparison: RunComparison, unit: str, scales: list[float], *, differs: bool) -> list[str]:
    sides, letters = comparison.sides, _letters(comparison)
    digits = ms_digits(min(side.step.total * scale for side, scale in zip(sides, scales, strict=True)) / 1e3)
    titles = [unit, *letters]
    if differs:
        titles += [f"{letter} - {letters[0]}" for letter in letters[1:]]
    rows = []
    for part in (*ROWS, "step"):
        values = [scale * _part(side.step, part) for side, scale in zip(sides, scales, strict=True)]
        spreads = [scale * _spread(side, part) for side, scale in zip(sides, scales, strict=True)]
        if not any(values):
            continue
        cells = [f"{value:.{digits}f}" for value in values]
        for value, spread in zip(values[1:], spreads[1:], strict=True) if differs else ():
            both = hypot(spread, spreads[0])
            cells.append(f"{value - values[0]:+.{digits}f}" + (f" ± {both:.{digits}f}" if both > 0 else ""))
        rows.append([ROWS.get(part, "whole step" if unit == "ms a step" else "in all"), *cells])
    return aligned(titles, rows, left=(unit,))


def _part(step: StepBreakdown, part: str) -> float:
    return step.total if part == "step" else float(getattr(step, part))


def _spread(side: ComparedRun, part: str) -> float:
    """Not a number where it is not known, as that of a prediction's parts is not."""
    if side.total_spread is None or (side.source == "prediction" and part != "step"):
        return nan
    return side.total_spread if part == "step" else float(getattr(side.spread, part))


def _how(comparison: RunComparison) -> str:
    how = "± is the standard deviation between stretches of a run, from records evenly spaced over it"
    if any(side.source == "prediction" for side in comparison.sides):
        how += "; of a prediction, that of its own interval, which its parts do not have"
    return f"{how}. {_judged(comparison)} Evaluations and checkpoints are not in a step."


def _judged(comparison: RunComparison) -> str:
    """What counts as a difference, with the figures that are judged: they are not those of the table."""
    letters = _letters(comparison)
    known = [
        f"of {letter} / {letters[0]} it is {log(one.ratio):+.3f} ± {one.spread:.3f}"
        for letter, one in zip(letters[1:], comparison.differences, strict=True)
        if one.spread is not None
    ]
    rule = (
        "A difference counts by the ratio of the times a sample, whose logarithm has to be beyond "
        f"{SIGMAS:g} standard deviations"
    )
    return f"{rule}{': ' if known else ''}{', '.join(known)}."


def failures(comparison: RunComparison, slowdown: float) -> list[str]:
    """A sentence for each side that is slower a sample than allowed, by more than the spread.

    Raises UsageError where that spread is not known, as a check that cannot fail would pass whatever happened.
    """
    for side in comparison.sides:
        if side.total_spread is None:
            raise UsageError(
                f"max slowdown {percent(slowdown)} cannot be checked: how much the steps of {side.name} vary is not "
                "known, as its record of steps is gone or too short; compare whole run folders of longer runs"
            )
    return [
        f"{_called(one.other)} is {percent(round(one.ratio - 1, 3))} slower per sample than {_called(one.first)}, more "
        f"than the allowed {percent(slowdown)}"
        for one in comparison.differences
        if one.exceeds(slowdown)
    ]


def comparison_document(comparison: RunComparison, slowdown: float | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "answers": answers(comparison),
        "warnings": warnings(comparison),
        "same_batch": comparison.same_batch,
        "epoch_samples": comparison.epoch,
        "runs": [side_document(side) for side in comparison.sides],
        "differences": [_difference_document(one) for one in comparison.differences],
        "findings": findings_document(findings_of(comparison)),
        "max_slowdown": slowdown,
        "failures": [] if slowdown is None else failures(comparison, slowdown),
    }


def side_document(side: ComparedRun) -> dict[str, Any]:
    return {
        "name": side.name,
        "source": side.source,
        "workers": side.workers,
        "step": to_document(side.step),
        "spread": to_document(side.spread),
        "step_seconds": side.step.total,
        "step_spread": side.total_spread,
        "samples_per_step": side.samples,
        "samples_per_second": side.rate,
        "sent": side.sent,
        "conditions": dict(side.conditions),
    }


def _difference_document(one: SpeedDifference) -> dict[str, Any]:
    cause, share = one.cause
    return {
        "name": one.other.name,
        "ratio": one.ratio,
        "spread": one.spread,
        "significant": one.significant,
        "cause": cause if one.significant else None,
        "share": share if one.significant else None,
    }

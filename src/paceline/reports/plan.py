"""A plan as people read it: the answer, the table behind it, its unknowns, what was left out."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal

from paceline.codecs import NO_CODEC
from paceline.reports.text import aligned, counted, percent
from paceline.studies.plan import TrainingPlan
from paceline.studies.plan.candidates import LARGE, Candidate, Unknown
from paceline.units import parse_seconds, show_seconds

MOST_REASONS = 4
"""Reasons for leaving something out that are told; the JSON document has all."""


def text_lines(plan: TrainingPlan, chart: Sequence[str] = ()) -> list[str]:
    """All but the commands; the first line is the answer."""
    title = "Nearest" if not plan.met else "Best" if plan.aim.given else "Pareto front, fastest first"
    return [
        answer(plan),
        "",
        f"{heading(plan)}. {title}:",
        "",
        *table_lines(plan),
        "",
        *([*chart, ""] if chart else []),
        *unknown_lines(plan),
        *left_out_lines(plan),
        *_basis_lines(plan),
    ]


def answer(plan: TrainingPlan) -> str:
    first, aim = plan.first, plan.aim
    if not aim.given:
        fastest, cheapest = plan.front[0], plan.front[-1]
        if fastest == cheapest:
            return f"{candidate_text(fastest)}; nothing is faster or cheaper."
        return f"Fastest: {candidate_text(fastest)}. Cheapest: {candidate_text(cheapest)}."
    if not plan.met:
        return _missed(plan)
    others = f" of the {plan.meeting} that do" if plan.meeting > 1 else ", and nothing else does"
    superlative = "is fastest" if aim.deadline is None else "costs least"
    risk = ""
    if aim.deadline is not None and first.time_high > aim.deadline:
        risk = f" It may miss the deadline: the interval reaches {show_seconds(first.time_high)}."
    if aim.budget is not None and first.cost_high > aim.budget:
        risk += f" It may exceed the budget: the interval reaches {money(first.cost_high)}."
    ending = f" and {superlative}{others}" if plan.meeting > 1 else others
    return f"{candidate_text(first)}; meets {_aim(plan)}{ending}.{risk}"


def candidate_text(one: Candidate) -> str:
    """One candidate in a clause: "8 x a100 at 25gbit with all-reduce, batch 64: 5.2 h (4.7 h to 5.9 h) for 104"."""
    times = f"{show_seconds(one.time)} ({show_seconds(one.time_low)} to {show_seconds(one.time_high)})"
    costs = f"{money(one.cost)} ({money(one.cost_low)} to {money(one.cost_high)})"
    return f"{short(one)}: {times} for {costs}"


def short(one: Candidate) -> str:
    coded = "" if one.codec == NO_CODEC else f" and {one.codec}"
    agree = f" with {one.strategy}{coded}" if one.workers > 1 else ""
    return f"{one.workers:,} x {one.hardware}{agree}, batch {one.batch:,}"


def _aim(plan: TrainingPlan) -> str:
    words = []
    if plan.aim.deadline is not None:
        words.append(f"the deadline of {show_seconds(plan.aim.deadline)}")
    if plan.aim.budget is not None:
        words.append(f"the budget of {money(plan.aim.budget)}")
    return " and ".join(words)


def _missed(plan: TrainingPlan) -> str:
    """The nearest, and what the deadline or the budget would have to be."""
    return (
        f"Nothing meets {_aim(plan)}. Nearest is {candidate_text(plan.first)}. It would take {_needed(plan)}."
    )


def _needed(plan: TrainingPlan) -> str:
    aim, first = plan.aim, plan.first
    affordable, in_time = filter(aim.affordable, plan.front), filter(aim.in_time, plan.front)
    soonest, least = next(affordable, None), next(reversed(list(in_time)), None)
    if aim.budget is None or aim.deadline is None:
        return f"{_deadline(first) if aim.deadline else _budget(first)}, or hardware that is not offered"
    ways = []
    if soonest is not None:
        ways.append(f"{_deadline(soonest)} at that budget")
    if least is not None:
        ways.append(f"{_budget(least)} at that deadline")
    return " or ".join(ways) or f"{_deadline(first)} and {_budget(first)}"


def _deadline(one: Candidate) -> str:
    """The deadline that it meets, to be typed."""
    unit = show_seconds(one.time).split()[1]
    return f"a deadline of {_rounded_up(one.time / parse_seconds(f'1 {unit}'))} {unit}"


def _budget(one: Candidate) -> str:
    return f"a budget of {_rounded_up(one.cost)}"


def _rounded_up(value: float) -> str:
    """To three figures, and no less than the value."""
    return f"{Context(prec=3, rounding=ROUND_CEILING).create_decimal(Decimal(value)):f}"


def heading(plan: TrainingPlan) -> str:
    return (
        f"{plan.name}, {counted(plan.parameters, 'parameter')}, {counted(plan.samples, 'sample')} of training"
    )


def table_lines(plan: TrainingPlan) -> list[str]:
    """What is the same in all rows has no column."""
    cells = [_cells(place, one) for place, one in enumerate(plan.best, start=1)]
    optional = ("codec", "servers", "samples", "unknowns")
    empty = {title for title in optional if all(row[title] in ("", "-", NO_CODEC) for row in cells)}
    titles = [title for title in cells[0] if title not in empty]
    left = ("hardware", "strategy", "codec", "unknowns")
    return aligned(titles, [[row[title] for title in titles] for row in cells], left=left)


def _cells(place: int, one: Candidate) -> dict[str, str]:
    return {
        "": f"{place}",
        "workers": f"{one.workers:,}",
        "hardware": one.hardware,
        "strategy": one.strategy,
        "codec": one.codec,
        "servers": f"{one.servers}" if one.servers else "-",
        "batch": f"{one.batch:,}",
        "global": f"{one.global_batch:,}",
        "samples": "" if one.factor == 1 else f"x {one.factor:.3g}",
        "time": show_seconds(one.time),
        "80 % interval": f"{show_seconds(one.time_low)} .. {show_seconds(one.time_high)}",
        "cost": money(one.cost),
        "low .. high": f"{money(one.cost_low)} .. {money(one.cost_high)}",
        "unknowns": ", ".join(one.unknowns),
    }


def money(amount: float) -> str:
    """In any currency, with three figures or whole units."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def unknown_lines(plan: TrainingPlan) -> list[str]:
    """Which rows may need more samples to the same accuracy, and why."""
    lines = []
    if plan.factors.study:
        lines.append(_factor_sentence(plan))
    reasons: dict[Unknown, str] = {
        "batch": f"global batch above {LARGE} x {plan.reference_batch:,.0f}",
        "strategy": "workers drift apart or use stale gradients",
        "codec": "gradients are not sent whole",
    }
    found = [
        f"{_rows(places, len(plan.best))} ({words})"
        for unknown, words in reasons.items()
        if (places := [place for place, one in enumerate(plan.best, 1) if unknown in one.unknowns])
    ]
    if found:
        said = "Unknowns: every row has the same number of samples, and more"
        if plan.factors.study:
            said = "Unknowns beyond the study: more samples"
        lines.append(f"{said} may be needed to reach the same accuracy in {', '.join(found)}.")
    return lines


def _rows(places: Sequence[int], of: int) -> str:
    if len(places) == of:
        return "all rows" if of > 1 else "row 1"
    if len(places) == 1:
        return f"row {places[0]}"
    return f"rows {', '.join(map(str, places[:-1]))} and {places[-1]}"


def _factor_sentence(plan: TrainingPlan) -> str:
    factors = plan.factors
    return (
        f"Samples of each pair are multiplied by what {factors.study} measured relative to {factors.first}, samples to "
        f"{percent(factors.target)} with {counted(factors.workers, 'worker')} and a global batch of "
        f"{factors.global_batch:,}; a pair that it did not run by what its strategy and its codec needed alone."
    )


def _basis_lines(plan: TrainingPlan) -> list[str]:
    """One a kind of hardware; what is the same for several is told once."""
    by_words: dict[str, list[str]] = {}
    for label, basis in plan.bases.items():
        by_words.setdefault(f"{basis.level}; {basis.interval}", []).append(label)
    return [f"Times of {' and '.join(labels)}: {words}." for words, labels in by_words.items()]


def left_out_lines(plan: TrainingPlan) -> list[str]:
    lines = []
    if plan.dominated:
        lines.append(
            f"{counted(plan.dominated, 'way')} to train left out that gain less than 2 % over one with fewer unknowns."
        )
    if plan.left_out:
        total = sum(one.count for one in plan.left_out)
        if len(plan.left_out) == 1:
            (only,) = plan.left_out
            return [*lines, f"{total} left out, such as {only.example}: {only.reason}."]
        reasons = [f"{one.count} ({one.example}): {one.reason}" for one in plan.left_out[:MOST_REASONS]]
        more = len(plan.left_out) - MOST_REASONS
        ending = f"; and {counted(more, 'other reason')}" if more > 0 else ""
        lines.append(f"{total} left out: {'; '.join(reasons)}{ending}.")
    return lines

"""Answers of scenarios as text and as documents."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import Explanation, explain
from paceline.reports.explain.page import document
from paceline.reports.explain.request import DRAWN, ExplainRequest
from paceline.reports.explain.text import explanation_lines
from paceline.reports.text import percent
from paceline.studies.scenarios.questions import LeastTraffic, Peak, Scaling, ScalingPoint
from paceline.units import show_rate

if TYPE_CHECKING:  # it imports torch, which formulas do not need
    from paceline.studies.scenarios.run import Crossover


@dataclass(frozen=True, kw_only=True)
class RenderedAnswer:
    """One answer in words and as a document."""

    answer: str
    """One or two sentences."""
    lines: Sequence[str]
    """The table or timeline behind it."""
    document: dict[str, Any]


def exact_seconds(seconds: float) -> str:
    """A time to a thousandth of its unit, without zeros that say nothing: "595.5 s", "32,014 s", "2.097 ms"."""
    size = abs(seconds)
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if size >= s), ("us", 1e-6))
    if not seconds or (0.1 <= size < 1):
        unit, scale = "s", 1.0
    return f"{trimmed(seconds / scale)} {unit}"


def trimmed(value: float) -> str:
    """At most three decimals, and none that says nothing."""
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def three(value: float) -> str:
    """Three figures, zeros included: "0.940", "1.90"."""
    return f"{value:#.3g}".removesuffix(".")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Right-aligned columns, three spaces apart, each as wide as its widest cell; the first one left-aligned words."""
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    words = any(not row[0][:1].isdigit() for row in rows)
    return [
        "   ".join(
            cell.ljust(width) if words and place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (titles, *rows)
    ]


def render_crossover(answer: "Crossover") -> RenderedAnswer:
    """The number, its neighbour, and all that was tried."""
    rows = [
        [f"{one.workers:,}", trimmed(one.compute), trimmed(one.rest), trimmed(one.compute + one.rest)]
        for one in answer.tried
    ]
    lines = table(["workers", "computing s", "all else s", "a round s"], rows)
    return RenderedAnswer(answer=_crossover_sentence(answer), lines=lines, document=asdict(answer))


def _crossover_sentence(answer: "Crossover") -> str:
    tried = {one.workers: one for one in answer.tried}
    if answer.workers is None:
        last = tried[answer.most]
        return (
            f"Communication and aggregation never take longer than computing, up to {answer.most:,} workers: "
            f"{exact_seconds(last.rest)} a round against {exact_seconds(last.compute)}."
        )
    found = tried[answer.workers]
    words = (
        f"From {answer.workers:,} workers on, communication and aggregation take longer than computing: "
        f"{exact_seconds(found.rest)} a round against {exact_seconds(found.compute)}"
    )
    before = tried.get(answer.workers - 1)
    return f"{words}; with {before.workers:,} it is {exact_seconds(before.rest)}." if before else f"{words}."


def render_least_traffic(answer: LeastTraffic) -> RenderedAnswer:
    """The bound and, where a time is known, the use it makes of a link."""
    n, items = answer.processes, answer.items
    words = (
        f"In any all-reduce of {items:,} items of {answer.item_size} B among {n} processes, some process must send at "
        f"least {answer.bound:,} B."
    )
    lines = [f"ceil(2 x {n - 1}/{n} x {items:,}) items x {answer.item_size} B = {answer.bound:,} B"]
    if answer.use is not None and answer.seconds is not None:
        words += f" Done in {exact_seconds(answer.seconds)}, that uses {show_rate(answer.use)}"
        words += f", {percent(round(answer.use / answer.link, 3))} of the link." if answer.link else "."
        lines.append(f"{answer.bound:,} B / {exact_seconds(answer.seconds)} = {answer.use:,.0f} B/s")
    elif answer.link is not None:
        least = exact_seconds(answer.bound / answer.link)
        words += f" Over {show_rate(answer.link)} it takes at least {least}."
        lines.append(f"{answer.bound:,} B / {answer.link:,.0f} B/s = {least}")
    return RenderedAnswer(answer=words, lines=lines, document=asdict(answer))


def render_peak(answer: Peak) -> RenderedAnswer:
    """The rates in a sentence, and how they come about."""
    rates = _listed(
        [f"{one.rate:,.0f} images/s with {one.model} ({1e3 * one.seconds:.2g} ms)" for one in answer.models]
    )
    words = f"At its peak of {answer.flops / 1e12:.4g} TFLOP/s, {answer.device} could do about {rates}."
    rows = [
        [one.model, f"{one.operations / 1e6:,.0f}", f"{1e3 * one.seconds:.2f}", f"{one.rate:,.0f}"]
        for one in answer.models
    ]
    lines = table(["model", "M operations an image", "ms an image", "images/s"], rows)
    return RenderedAnswer(answer=words, lines=lines, document=asdict(answer))


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


SCALING_TITLES = (
    *("workers", "batch a worker", "epoch s", "compute s", "communicate s"),
    *("step ms", "speed-up", "efficiency", "bandwidth use"),
)


def render_scaling(answer: Scaling) -> RenderedAnswer:
    """Who gains most and who loses, and the table."""
    lines = table(SCALING_TITLES, [_scaling_row(point) for point in answer.points])
    lines += [
        "",
        "compute is one worker's epoch over the workers, communicate is the rest; bandwidth use is the least that an "
        f"all-reduce of {answer.parameters:,} parameters",
        "must send, over the rest",
    ]
    return RenderedAnswer(answer=_scaling_sentence(answer), lines=lines, document=asdict(answer))


def _scaling_sentence(answer: Scaling) -> str:
    together = [point for point in answer.points if point.workers > 1]
    if not together:
        return f"{answer.model} was measured with one worker only: there is nothing to compare."
    best = max(together, key=lambda point: point.speed_up)
    words = (
        f"{best.workers} workers are at best {three(best.speed_up)} times as fast as one, "
        f"at batch {best.batch:,} a worker"
    )
    slower = [point for point in together if point.speed_up < 1]
    if not slower:
        return f"{words}; no measured point is slower than one worker."
    worst = min(slower, key=lambda point: point.speed_up)
    return (
        f"{words}; {len(slower)} of {len(together)} points are slower than one worker, "
        f"the worst {worst.workers} at batch {worst.batch:,} ({three(worst.speed_up)})."
    )


def _scaling_row(point: ScalingPoint) -> list[str]:
    alone = point.workers == 1
    return [
        f"{point.workers}",
        f"{point.batch:,}",
        f"{point.seconds:.2f}",
        f"{point.compute:.2f}",
        "-" if alone else f"{point.communicate:.2f}",
        f"{1e3 * point.seconds / point.steps:.1f}",
        three(point.speed_up),
        f"{100 * point.speed_up / point.workers:.0f} %",
        "-" if point.use is None else show_rate(point.use),
    ]


def render_request(request: Mapping[str, Any]) -> RenderedAnswer:
    """Play what was asked for; the rounds in a sentence, then each of them."""
    story = explain(ExplainRequest(**request), DRAWN)
    return RenderedAnswer(
        answer=_explain_sentence(story),
        lines=[line.plain for line in explanation_lines(story)],
        document=document(story),
    )


def _explain_sentence(story: Explanation) -> str:
    phases = [
        sentences.count(len(list(steps)), f"{phase} round")
        for phase, steps in groupby(story.schedule.each_round(), key=lambda one: one.phase)
    ]
    return (
        f"{sentences.processes(story.schedule.workers)} take {', then '.join(phases) or 'no round'}; "
        f"every one ends with the {story.op}: {sentences.result(story)}."
    )

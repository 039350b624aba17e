"""Answers of scenarios as text and as documents, under the names of ``studies.scenarios.scenario.ASKS``."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.records.files import to_document
from paceline.records.servers import Updated
from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import explain
from paceline.reports.explain.render import explanation_lines
from paceline.reports.explain.request import DRAWN, ExplainRequest
from paceline.reports.text import aligned, counted, percent
from paceline.reports.timeline import distance_to_sequential, sequential_updates, timeline_text
from paceline.studies.scenarios.scenario import Answer
from paceline.units import show_rate

if TYPE_CHECKING:  # they import torch, which formulas do not need
    from paceline.studies.predict import Prediction
    from paceline.studies.scenarios.run import RunAnswer

FEW = 3
FEW_WORKERS = 6
"""Workers whose every message can be listed."""


class RenderedAnswer(NamedTuple):
    words: str
    """The answer in a sentence or two."""
    lines: Sequence[str]
    """What follows below it."""
    document: dict[str, Any]


def exact_seconds(seconds: float) -> str:
    """A time to a thousandth of its unit, without trailing zeros: "595.5 s", "32,014 s", "2.097 ms"."""
    size = abs(seconds)
    if not seconds or size >= 0.1:
        return f"{trimmed(seconds)} s"
    return f"{trimmed(seconds * 1e3)} ms" if size >= 1e-3 else f"{trimmed(seconds * 1e6)} us"


def trimmed(value: float) -> str:
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def three_figures(value: float) -> str:
    """Three figures, zeros included: "0.940", "1.90"."""
    return f"{value:#.3g}".removesuffix(".")


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def render_crossover(answer: Answer) -> RenderedAnswer:
    tried = {one["workers"]: one for one in answer["tried"]}
    workers, most = answer["workers"], answer["most"]
    found = tried[workers or most]
    times = f"{exact_seconds(found['rest'])} a round against {exact_seconds(found['compute'])}"
    words = f"Up to {most:,} workers, communication and aggregation take less than computing: {times}."
    if workers:
        if before := tried.get(workers - 1):
            times += f"; with {workers - 1:,} it is {exact_seconds(before['rest'])}"
        words = (
            f"From {workers:,} workers on, communication and aggregation take longer than computing: {times}."
        )
    rows = [
        [f"{one['workers']:,}", *map(trimmed, (one["compute"], one["rest"], one["compute"] + one["rest"]))]
        for one in answer["tried"]
    ]
    lines = aligned(["workers", "computing s", "all else s", "a round s"], rows, gap=3)
    return RenderedAnswer(words, lines, answer)


def render_least_traffic(answer: Answer) -> RenderedAnswer:
    items, size, n, bound, seconds, use, link = answer.values()
    words = (
        f"In any all-reduce of {items:,} items of {size} B among {n} processes, some process must send at "
        f"least {bound:,} B."
    )
    lines = [f"ceil(2 x {n - 1}/{n} x {items:,}) items x {size} B = {bound:,} B"]
    if seconds:
        words += f" Done in {exact_seconds(seconds)}, that uses {show_rate(use)}"
        words += f", {percent(round(use / link, 3))} of the link." if link else "."
        lines.append(f"{bound:,} B / {exact_seconds(seconds)} = {use:,.0f} B/s")
    elif link:
        least = exact_seconds(bound / link)
        words += f" Over {show_rate(link)} it takes at least {least}."
        lines.append(f"{bound:,} B / {link:,.0f} B/s = {least}")
    return RenderedAnswer(words, lines, answer)


def render_peak(answer: Answer) -> RenderedAnswer:
    rates, rows = [], []
    for one in answer["models"]:
        name, rate, milliseconds = one["model"], f"{one['rate']:,.0f}", 1e3 * one["seconds"]
        rates.append(f"{rate} images/s with {name} ({milliseconds:.2g} ms)")
        rows.append([name, f"{one['operations'] / 1e6:,.0f}", f"{milliseconds:.2f}", rate])
    peak = f"{answer['flops'] / 1e12:.4g} TFLOP/s"
    words = f"At its peak of {peak}, {answer['device']} could do about {listed(rates)}."
    lines = aligned(
        ["model", "M operations an image", "ms an image", "images/s"], rows, left=["model"], gap=3
    )
    return RenderedAnswer(words, lines, answer)


SCALING_TITLES = (
    *("workers", "batch per worker", "epoch s", "compute s", "communicate s"),
    *("step ms", "speed-up", "efficiency", "bandwidth use"),
)


def render_scaling(answer: Answer) -> RenderedAnswer:
    rows = [
        [
            f"{point['workers']}",
            f"{point['batch']:,}",
            f"{point['seconds']:.2f}",
            f"{point['compute']:.2f}",
            "-" if point["workers"] == 1 else f"{point['communicate']:.2f}",
            f"{1e3 * point['seconds'] / point['steps']:.1f}",
            three_figures(point["speed_up"]),
            f"{100 * point['speed_up'] / point['workers']:.0f} %",
            "-" if point["use"] is None else show_rate(point["use"]),
        ]
        for point in answer["points"]
    ]
    lines = [
        *aligned(SCALING_TITLES, rows, gap=3),
        "",
        "compute is one worker's epoch over the workers, communicate is the rest; bandwidth use is the least that an "
        f"all-reduce of {answer['parameters']:,} parameters",
        "must send, over the rest",
    ]
    return RenderedAnswer(_scaling_sentence(answer), lines, answer)


def _scaling_sentence(answer: Answer) -> str:
    together = [point for point in answer["points"] if point["workers"] > 1]
    if not together:
        return f"{answer['model']} was measured with one worker only: there is nothing to compare."
    ordered = sorted(together, key=lambda point: point["speed_up"])
    worst, best, slower = ordered[0], ordered[-1], sum(point["speed_up"] < 1 for point in together)
    compared = "no measured point is slower than one worker."
    if slower:
        compared = (
            f"{slower} of {len(together)} points are slower than one worker, "
            f"the worst {worst['workers']} at batch {worst['batch']:,} ({three_figures(worst['speed_up'])})."
        )
    return (
        f"{best['workers']} workers are at best {three_figures(best['speed_up'])} times as fast as one, "
        f"at batch {best['batch']:,} per worker; {compared}"
    )


def render_explanation(request: Answer) -> RenderedAnswer:
    story = explain(ExplainRequest(**request), DRAWN)
    phases = [
        counted(len(list(steps)), f"{phase} round")
        for phase, steps in groupby(filter(lambda step: step.round, story.steps), key=lambda step: step.phase)
    ]
    words = (
        f"{sentences.processes(story.workers)} take {', then '.join(phases) or 'no round'}; "
        f"every one ends with the {story.summary[0]}."
    )
    lines = [line.plain for line in explanation_lines(story)]
    return RenderedAnswer(words, lines, to_document(story))


def render_prediction(answer: "Prediction") -> RenderedAnswer:
    from paceline.reports.predict.text import text_lines

    lines = text_lines(answer)
    return RenderedAnswer(lines[0], lines[2:], to_document(answer))


def render_run(answer: "RunAnswer") -> RenderedAnswer:
    """Asynchronous and short: update by update; else by rounds, or by where a worker's time went."""
    updates = [entry for entry in answer.entries if isinstance(entry, Updated)]
    staleness = [max((one.staleness for one in update.used), default=0) for update in updates]
    document, sequential = {**to_document(answer), "staleness": staleness}, None
    if answer.horizon is not None:
        sequential = sequential_updates(answer.compute, answer.horizon)
    if answer.entries:
        document["distance"] = distance_to_sequential(staleness, sequential).bound
    if any(staleness):
        first = all(one.version == 0 for update in updates for one in update.used)
        words = _updates_sentence(answer, staleness, first, document["distance"])
        lines = [*timeline_text(answer.entries, sequential).split("\n"), "", _names(answer)]
    elif answer.updates:
        words, lines = _rounds_sentence(answer), _round_lines(answer)
    elif answer.horizon is not None:
        words = f"No update within {exact_seconds(answer.horizon)}: no gradient was finished by then."
        lines = []
    else:
        words, lines = _steps_text(answer)
    return RenderedAnswer(words, lines, document)


def _updates_sentence(answer: "RunAnswer", staleness: Sequence[int], first: bool, distance: int) -> str:
    within = f" within {exact_seconds(answer.horizon)}" if answer.horizon is not None else ""
    computed = ", all computed on the first parameters" if first else ""
    missing = f" and {', '.join(answer.unfinished)} does not finish" if answer.unfinished else ""
    return (
        f"{counted(answer.updates, 'update')}{within}{computed}: staleness {', '.join(map(str, staleness))}, so "
        f"{sum(map(bool, staleness))} of {len(staleness)} are stale{missing}. The model is at most "
        f"{distance} eta Delta from sequential SGD's."
    )


def _names(answer: "RunAnswer") -> str:
    return "; ".join(f"worker {rank} is {name}" for rank, name in enumerate(answer.workers))


def _rounds_sentence(answer: "RunAnswer") -> str:
    took = exact_seconds(answer.seconds)
    trained = f"{answer.batches:,} batches in all"
    if answer.local_batches > 1:
        trained = f"{answer.local_batches:,} batches per worker and round"
    if not answer.rounds or len(answer.rounds) > FEW:
        return f"{took} for {counted(answer.updates, 'update')}, {trained}."
    if answer.updates == 1:
        return f"{took} for one round of {counted(answer.rounds[0].workers, 'worker')}, {trained}."
    each = []
    for one in answer.rounds:
        of, takes = f"of {counted(one.workers, 'worker')}", exact_seconds(one.seconds)
        alone = one.count == 1
        each.append(
            f"1 round {of} takes {takes}" if alone else f"{one.count:,} rounds {of} take {takes} each"
        )
    return f"{took} for {answer.batches:,} batches: {listed(each)}."


def _round_lines(answer: "RunAnswer") -> list[str]:
    if not answer.rounds:
        return ["the rounds differ too much to be listed"]
    rows, compute = [], answer.compute
    for one in answer.rounds:
        times = (compute, one.seconds - compute, one.seconds, one.count * one.seconds)
        rows.append([f"{one.count:,}", f"{one.workers:,}", *map(trimmed, times)])
    titles = ["rounds", "workers", "computing s", "all else s", "a round s", "together s"]
    lines = aligned(titles, rows, gap=3)
    if answer.entries and answer.updates <= FEW and len(answer.workers) <= FEW_WORKERS:
        lines += ["", *timeline_text(answer.entries).split("\n"), "", _names(answer)]
    return lines


def _steps_text(answer: "RunAnswer") -> tuple[str, list[str]]:
    """Of workers without servers."""
    workers, communicate, wait = len(answer.workers), answer.communicate or 0.0, answer.wait or 0.0
    steps = answer.batches // workers // answer.local_batches
    words = (
        f"{exact_seconds(answer.seconds)} for {counted(steps, 'step')} of each of {counted(workers, 'worker')}: "
        f"{exact_seconds(communicate)} of it is communication and {exact_seconds(wait)} waiting."
    )
    rows = [
        ["computing", exact_seconds(answer.seconds - communicate - wait)],
        ["communicating", exact_seconds(communicate)],
        ["waiting for others", exact_seconds(wait)],
        ["in all", exact_seconds(answer.seconds)],
    ]
    title = "where a worker's time went"
    return words, aligned([title, ""], rows, left=[title], gap=3)


RENDERERS: Mapping[str, Callable[[Any], RenderedAnswer]] = {
    "crossover": render_crossover,
    "explain": render_explanation,
    "lower-bound": render_least_traffic,
    "peak": render_peak,
    "predict": render_prediction,
    "run": render_run,
    "scaling": render_scaling,
}

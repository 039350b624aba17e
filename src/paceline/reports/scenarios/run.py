"""How a run with stated times went."""

from dataclasses import asdict
from typing import Any

from paceline.records.files import to_document
from paceline.records.servers import Updated
from paceline.reports.scenarios.render import RenderedAnswer, exact_seconds, table, trimmed
from paceline.reports.text import counted
from paceline.reports.timeline import distance_to_sequential, sequential_updates, timeline_text
from paceline.studies.scenarios.run import Rounds, RunAnswer

FEW = 3
"""Kinds of rounds that a sentence can hold."""
FEW_WORKERS = 6
"""Workers whose every message can be listed."""


def render_run(answer: RunAnswer) -> RenderedAnswer:
    """Asynchronous and short: update by update; else by rounds, or by where a worker's time went."""
    document = _document(answer)
    if answer.entries and _stale(answer) and any(_stale(answer)):
        return _tell_updates(answer, document)
    if answer.updates:
        return RenderedAnswer(answer=_rounds_sentence(answer), lines=_round_lines(answer), document=document)
    if answer.horizon is not None:
        words = f"No update within {exact_seconds(answer.horizon)}: no gradient was finished by then."
        return RenderedAnswer(answer=words, lines=[], document=document)
    return _tell_steps(answer, document)


def _document(answer: RunAnswer) -> dict[str, Any]:
    document = {
        **asdict(answer),
        "entries": [to_document(entry) for entry in answer.entries],
        "staleness": _stale(answer),
    }
    if answer.entries:
        document["distance"] = _distance(answer)
    return document


def _stale(answer: RunAnswer) -> list[int]:
    """The largest staleness of each update, where the run is short."""
    return [
        max((one.staleness for one in entry.used), default=0)
        for entry in answer.entries
        if isinstance(entry, Updated)
    ]


def _sequential(answer: RunAnswer) -> int | None:
    return None if answer.horizon is None else sequential_updates(answer.compute, answer.horizon)


def _distance(answer: RunAnswer) -> int:
    return distance_to_sequential(_stale(answer), _sequential(answer)).bound


def _tell_updates(answer: RunAnswer, document: dict[str, Any]) -> RenderedAnswer:
    staleness = _stale(answer)
    first = all(
        one.version == 0 for entry in answer.entries if isinstance(entry, Updated) for one in entry.used
    )
    within = f" within {exact_seconds(answer.horizon)}" if answer.horizon is not None else ""
    computed = ", all computed on the first parameters" if first else ""
    missing = f" and {', '.join(answer.unfinished)} does not finish" if answer.unfinished else ""
    words = (
        f"{counted(answer.updates, 'update')}{within}{computed}: staleness {', '.join(map(str, staleness))}, so "
        f"{sum(map(bool, staleness))} of {len(staleness)} are stale{missing}. The model is at most "
        f"{_distance(answer)} eta Delta from sequential SGD's."
    )
    lines = [*timeline_text(answer.entries, _sequential(answer)).split("\n"), "", _names(answer)]
    return RenderedAnswer(answer=words, lines=lines, document=document)


def _names(answer: RunAnswer) -> str:
    return "; ".join(f"worker {rank} is {name}" for rank, name in enumerate(answer.workers))


def _rounds_sentence(answer: RunAnswer) -> str:
    took = exact_seconds(answer.seconds)
    trained = _trained(answer)
    if not answer.rounds or len(answer.rounds) > FEW:
        return f"{took} for {counted(answer.updates, 'update')}, {trained}."
    if answer.updates == 1:
        return f"{took} for one round of {counted(answer.rounds[0].workers, 'worker')}, {trained}."
    parts = [_round_words(one) for one in answer.rounds]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{took} for {answer.batches:,} batches: {listed}."


def _trained(answer: RunAnswer) -> str:
    if answer.local_batches > 1:
        return f"{answer.local_batches:,} batches a worker and round"
    return f"{answer.batches:,} batches in all"


def _round_words(rounds: Rounds) -> str:
    of = f"of {counted(rounds.workers, 'worker')}"
    if rounds.count == 1:
        return f"1 round {of} takes {exact_seconds(rounds.seconds)}"
    return f"{rounds.count:,} rounds {of} take {exact_seconds(rounds.seconds)} each"


def _round_lines(answer: RunAnswer) -> list[str]:
    if not answer.rounds:
        return ["the rounds differ too much to be listed"]
    rows = [
        [
            f"{one.count:,}",
            f"{one.workers:,}",
            trimmed(answer.compute),
            trimmed(one.seconds - answer.compute),
            trimmed(one.seconds),
            trimmed(one.count * one.seconds),
        ]
        for one in answer.rounds
    ]
    titles = ["rounds", "workers", "computing s", "all else s", "a round s", "together s"]
    lines = table(titles, rows)
    if answer.entries and answer.updates <= FEW and len(answer.workers) <= FEW_WORKERS:
        lines += ["", *timeline_text(answer.entries).split("\n"), "", _names(answer)]
    return lines


def _tell_steps(answer: RunAnswer, document: dict[str, Any]) -> RenderedAnswer:
    """Workers that agree among themselves."""
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
    return RenderedAnswer(
        answer=words, lines=table(["where a worker's time went", ""], rows), document=document
    )

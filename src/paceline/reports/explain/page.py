"""An explanation as one JSON document, and as a page drawn from it that steps forward and back and loads nothing."""

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import replacing
from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import ExplainedRound, Explanation, RankValues
from paceline.reports.explain.request import Values

SCHEMA = 2


def document(explanation: Explanation) -> dict[str, Any]:
    """Everything there is to know, sentences included."""
    schedule, steps = explanation.schedule, explanation.steps
    return {
        "schema": SCHEMA,
        "schedule": schedule.name,
        "op": explanation.op,
        "workers": schedule.workers,
        "hosts": list(explanation.hosts),
        "segments": explanation.segments,
        "chunks": schedule.chunks,
        "bounds": list(explanation.bounds),
        "about": sentences.about(schedule.name),
        "how": sentences.how(schedule.name),
        "opening": sentences.opening(explanation),
        "start": _state(explanation.start),
        "steps": [_step(explanation, step, number) for number, step in enumerate(steps, start=1)],
        "result": _numbers(explanation.end.values[0]),
        "agreed": explanation.agreed,
        "totals": _totals(explanation),
        "summary": [
            f"{explanation.op}: {sentences.result(explanation)}",
            *sentences.traffic(explanation),
        ],
    }


def _step(explanation: Explanation, step: ExplainedRound, number: int) -> dict[str, Any]:
    return {
        "round": number if step.messages else None,
        "phase": step.phase,
        "title": sentences.title(step, explanation.schedule.workers),
        "sentence": sentences.sentence(explanation, step),
        "progress": sentences.progress(explanation, step),
        "messages": [
            {
                "source": message.source,
                "target": message.target,
                "start": message.start,
                "stop": message.stop,
                "on_receive": "reduce" if message.reduces else "replace",
                "values": _numbers(message.values),
            }
            for message in step.messages
        ],
        "received": [
            {"target": one.target, "text": f"p{one.target} {one.words(explanation)}"}
            for one in sentences.received(explanation, step)
        ],
        **_state(step.after),
    }


def _state(state: RankValues) -> dict[str, Any]:
    return {"values": [_numbers(row) for row in state.values], "parts": state.parts}


def _totals(explanation: Explanation) -> dict[str, Any]:
    sent = [explanation.sent(rank) for rank in range(explanation.schedule.workers)]
    return {
        "rounds": explanation.schedule.round_count,
        "messages": len(explanation.messages),
        "messages_between_hosts": explanation.across,
        "values_sent": sent,
        "bytes_sent": [sentences.ELEMENT * values for values in sent],
        "lower_bound_values": explanation.least,
        "lower_bound_bytes": sentences.ELEMENT * explanation.least,
    }


def _numbers(values: Values) -> list[float]:
    """Whole numbers without a decimal point."""
    return [int(value) if value == int(value) else value for value in values]


def page(explanation: Explanation) -> str:
    schedule = explanation.schedule
    title = f"{schedule.name} all-reduce of {schedule.workers} by {explanation.op}"
    states = (explanation.start, *(step.after for step in explanation.steps))
    data = {**document(explanation), "shown": [_cells(explanation, state) for state in states]}
    # JSON that cannot end the element it stands in, whatever its texts are.
    story = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return Template(_asset("page.html")).substitute(
        title=html.escape(title), style=_asset("page.css"), script=_asset("page.js"), story=story
    )


def write_page(explanation: Explanation, path: Path) -> None:
    """Write the page; what was there before is replaced."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file that can be replaced: name a new one, such as ring.html")
    try:
        with replacing(path) as file:
            file.write(page(explanation).encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from error


def _cells(explanation: Explanation, state: RankValues) -> list[list[str]]:
    chunks = range(explanation.schedule.chunks)
    return [[sentences.numbers(explanation.chunk(row, chunk)) for chunk in chunks] for row in state.values]


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")

"""An explanation as one JSON document, and as a page drawn from it that steps forward and back and loads nothing."""

import html
import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import replacing
from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import ExplainedRound, Explanation


def document(explanation: Explanation) -> dict[str, Any]:
    schedule, steps, end = explanation.schedule, explanation.steps, explanation.end.values
    about, how = sentences.about(schedule.name)
    sent, least = (
        [explanation.sent(rank) for rank in range(schedule.workers)],
        sentences.least_values(explanation),
    )
    return {
        "schema": 2,
        "schedule": schedule.name,
        "op": explanation.op,
        "workers": schedule.workers,
        "hosts": explanation.hosts,
        "segments": explanation.segments,
        "chunks": schedule.chunks,
        "bounds": explanation.bounds,
        "about": about,
        "how": how,
        "opening": sentences.opening(explanation),
        "start": asdict(explanation.start),
        "steps": [_step(explanation, step, number) for number, step in enumerate(steps, start=1)],
        "result": end[0],
        "agreed": len(set(end)) == 1,
        "totals": {
            "rounds": schedule.round_count,
            "messages": len(explanation.messages),
            "messages_between_hosts": explanation.across,
            "values_sent": sent,
            "bytes_sent": [sentences.ELEMENT * values for values in sent],
            "lower_bound_values": least,
            "lower_bound_bytes": sentences.ELEMENT * least,
        },
        "summary": [f"{explanation.op}: {sentences.result(explanation)}", *sentences.traffic(explanation)],
    }


def _step(explanation: Explanation, step: ExplainedRound, number: int) -> dict[str, Any]:
    return {
        "round": number if step.messages else None,
        "phase": step.phase,
        "title": sentences.title(step),
        "sentence": sentences.sentence(explanation, step),
        "progress": sentences.progress(step),
        "messages": [asdict(message) for message in step.messages],
        "received": [
            {"target": target, "text": f"p{target} {text}"}
            for target, text in sentences.received(explanation, step)
        ],
        **asdict(step.after),
    }


def page(explanation: Explanation) -> str:
    schedule = explanation.schedule
    title = f"{schedule.name} all-reduce of {schedule.workers} by {explanation.op}"
    # JSON that cannot end the element it stands in, whatever its texts are.
    data = {**document(explanation), "shown": sentences.cells(explanation)}
    story = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    asset = {
        name: files(__package__).joinpath("assets", f"page.{name}").read_text("utf-8")
        for name in ("html", "css", "js")
    }
    return Template(asset["html"]).substitute(
        title=html.escape(title), style=asset["css"], script=asset["js"], story=story
    )


def write_page(explanation: Explanation, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file that can be replaced: name a new one, such as ring.html")
    try:
        with replacing(path) as file:
            file.write(page(explanation).encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from error

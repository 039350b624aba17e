"""A story as one JSON document; the page is drawn from the same one."""

from typing import Any

from paceline.reports.explain import words
from paceline.reports.explain.catalogue import about, how
from paceline.reports.explain.messages import receipts
from paceline.reports.explain.request import Values
from paceline.reports.explain.story import Moment, Step, Story

SCHEMA = 1


def document(story: Story) -> dict[str, Any]:
    """Everything there is to know, sentences included."""
    schedule = story.schedule
    return {
        "schema": SCHEMA,
        "schedule": schedule.name,
        "op": story.op,
        "workers": schedule.workers,
        "hosts": list(story.hosts),
        "segments": story.segments,
        "chunks": schedule.chunks,
        "bounds": list(story.bounds),
        "about": about(schedule.name),
        "how": how(schedule.name),
        "opening": words.opening(story),
        "start": _moment(story.start),
        "steps": [_step(story, step, number) for number, step in enumerate(story.steps, start=1)],
        "result": _numbers(story.end.values[0]),
        "agreed": story.agreed,
        "totals": _totals(story),
        "summary": [f"{story.op}: {words.result(story)}", *words.traffic(story)],
    }


def _step(story: Story, step: Step, number: int) -> dict[str, Any]:
    return {
        "round": number if step.messages else None,
        "phase": step.phase,
        "title": words.title(step, story.schedule.workers),
        "sentence": words.sentence(story, step),
        "progress": words.progress(story, step),
        "messages": [
            {
                "source": message.source,
                "target": message.target,
                "start": message.start,
                "stop": message.stop,
                "then": "reduce" if message.reduces else "replace",
                "values": _numbers(message.values),
            }
            for message in step.messages
        ],
        "received": [
            {"target": receipt.target, "text": f"p{receipt.target} {receipt.words(story)}"}
            for receipt in receipts(story, step)
        ],
        **_moment(step.after),
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "values": [_numbers(row) for row in moment.values],
        "parts": [[list(ranks) for ranks in chunks] for chunks in moment.parts],
    }


def _totals(story: Story) -> dict[str, Any]:
    ranks = range(story.schedule.workers)
    return {
        "rounds": story.schedule.round_count,
        "messages": len(story.messages),
        "messages_between_hosts": story.across,
        "values_sent": [story.sent(rank) for rank in ranks],
        "bytes_sent": [words.ELEMENT * story.sent(rank) for rank in ranks],
        "lower_bound_values": story.least,
        "lower_bound_bytes": words.ELEMENT * story.least,
    }


def _numbers(values: Values) -> list[float]:
    """Whole numbers without a decimal point."""
    return [int(value) if value == int(value) else value for value in values]

"""A collective, round by round."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import Explanation, explain
from paceline.reports.explain.page import document
from paceline.reports.explain.request import DRAWN, ExplainRequest
from paceline.reports.explain.text import explanation_lines
from paceline.reports.scenarios.told import Told


def tell_request(request: Mapping[str, Any]) -> Told:
    """Play what was asked for; the rounds in a sentence, then each of them."""
    story = explain(ExplainRequest(**request), DRAWN)
    return Told(
        answer=_sentence(story),
        lines=[line.plain for line in explanation_lines(story)],
        document=document(story),
    )


def _sentence(story: Explanation) -> str:
    phases = [
        sentences.count(len(list(steps)), f"{phase} round")
        for phase, steps in groupby(story.schedule.each_round(), key=lambda one: one.phase)
    ]
    return (
        f"{sentences.processes(story.schedule.workers)} take {', then '.join(phases) or 'no round'}; "
        f"every one ends with the {story.op}: {sentences.result(story)}."
    )

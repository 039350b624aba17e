"""A collective, round by round."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from paceline.reports.explain import words
from paceline.reports.explain.answer import answer
from paceline.reports.explain.document import document
from paceline.reports.explain.request import DRAWN, Request
from paceline.reports.explain.story import Story
from paceline.reports.explain.text import story_lines
from paceline.reports.scenarios.told import Told


def tell_request(request: Mapping[str, Any]) -> Told:
    """Play what was asked for; the rounds in a sentence, then each of them."""
    story = answer(Request(**request), DRAWN)
    return Told(
        answer=_sentence(story), lines=[line.plain for line in story_lines(story)], document=document(story)
    )


def _sentence(story: Story) -> str:
    phases = [
        words.count(len(list(steps)), f"{phase} round")
        for phase, steps in groupby(story.schedule.rounds, key=lambda one: one.phase)
    ]
    return (
        f"{words.processes(story.schedule.workers)} take {', then '.join(phases) or 'no round'}; "
        f"every one ends with the {story.op}: {words.result(story)}."
    )

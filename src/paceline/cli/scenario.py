"""``paceline simulate scenario.toml``: a question with stated times, and its answer."""

import json
from pathlib import Path

from paceline import specs
from paceline.errors import UsageError
from paceline.reports.scenarios import RENDERERS
from paceline.reports.scenarios.render import RenderedAnswer

SCHEMA = 1


def answer_scenario(path: Path, given: list[str], as_json: bool) -> int:
    """Answer what the file asks; ``given`` are other options, which have no place beside it."""
    from paceline.studies.scenarios.scenario import read_scenario

    if given:
        raise UsageError(f"{path} says all that is run, so {given[0]} has no place; leave one of them out")
    scenario = read_scenario(path)
    try:
        told: RenderedAnswer = specs.find(RENDERERS[scenario.ask])(scenario.answer())
    except UsageError as mistake:
        raise scenario.placed(mistake) from mistake
    if as_json:
        head = {"schema": SCHEMA, "scenario": str(path), "about": scenario.about, "ask": scenario.ask}
        print(json.dumps({**head, "answer": told.answer, "result": told.document}))  # noqa: T201
    else:
        print("\n".join([told.answer, f"({scenario.about})", *([""] if told.lines else []), *told.lines]))  # noqa: T201
    return 0

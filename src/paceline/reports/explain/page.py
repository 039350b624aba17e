"""A story as one page that steps forward and back, with nothing to load from anywhere."""

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template

from paceline.errors import UsageError
from paceline.records.files import replacing
from paceline.reports.explain.document import document
from paceline.reports.explain.story import Moment, Story
from paceline.reports.explain.words import numbers


def page(story: Story) -> str:
    """The page's whole text."""
    title = f"{story.schedule.name} all-reduce of {story.schedule.workers} by {story.op}"
    return Template(_asset("page.html")).substitute(
        title=html.escape(title), style=_asset("page.css"), script=_asset("page.js"), story=_as_data(story)
    )


def write_page(story: Story, path: Path) -> None:
    """Write the page; what was there before is replaced."""
    if path.exists() and not path.is_file():
        raise UsageError(f"--html {path} is no file that can be replaced: name a new one, such as ring.html")
    try:
        with replacing(path) as file:
            file.write(page(story).encode())
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written ({error.strerror}): name another file") from error


def _as_data(story: Story) -> str:
    """JSON that cannot end the element it stands in, whatever its texts are."""
    shown = [_cells(story, moment) for moment in (story.start, *(step.after for step in story.steps))]
    data = {**document(story), "shown": shown}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _cells(story: Story, moment: Moment) -> list[list[str]]:
    """What stands in each rank's chunks, as the text has it."""
    chunks = range(story.schedule.chunks)
    return [[numbers(story.chunk(row, chunk)) for chunk in chunks] for row in moment.values]


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")

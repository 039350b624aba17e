"""``paceline.load_run``: a run that has ended, live or simulated, from its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult
from paceline.errors import ArgumentError

if TYPE_CHECKING:
    from paceline.records.spans import Totals
    from paceline.studies.recorded import RecordedRun

SCHEMA = 2
"""Of the document of a run, as 'paceline train' and 'paceline simulate' write it too."""


@naming_arguments
def load_run(path: str | Path) -> "StudyResult[RecordedRun]":
    """Read a run that has ended, live or simulated; nothing is computed.

    Args:
        path: The run folder, or "latest": the live run in "runs" that was started or resumed last.

    Returns:
        A row an evaluation; where nothing was evaluated, as in a script's run, a row a worker, with the parts of its
        typical step. ``value`` is the ``RecordedRun`` with its settings, summary and samples of the machine; ``print``
        shows how it ended and where a step went.
    """
    from paceline.records.folder import named_path
    from paceline.studies.recorded import read_recorded

    return loaded(read_recorded(named_path(Path(path))))


def loaded(
    run: "RecordedRun", document: Mapping[str, Any] | None = None, further: Sequence[str] = ()
) -> "StudyResult[RecordedRun]":
    """``document`` is what the command has written of the run, where it is at hand; ``further`` ends the text."""
    return StudyResult(
        value=run,
        rows=[row.to_json() for row in run.rows] or [*map(_worker_row, count(), run.summary.totals)],
        document=lambda: _document(run) if document is None else document,
        text=lambda: "\n\n".join([_text(run), *filter(None, further)]),
    )


def path_of_run(given: object) -> Path | None:
    """The folder that a user means by a path, "latest" or a loaded run; None of what is in no folder."""
    from paceline.records.folder import named_path

    if isinstance(given, str | Path):
        return named_path(Path(given))
    folder = getattr(getattr(given, "value", given), "folder", None)
    return None if folder is None else Path(folder.path)


def path_of_times(given: object) -> Path:
    """As ``path_of_run``, of the run whose step times are taken."""
    if (path := path_of_run(given)) is None:
        kind = type(getattr(given, "value", given)).__name__
        raise ArgumentError(
            f"{{times}} is of type {kind}: give a run folder, 'latest', or what load_run returned", times=None
        )
    return path


def _worker_row(rank: int, totals: "Totals") -> dict[str, Any]:
    """Parts are named as those of a predicted step."""
    return {
        "rank": rank,
        "steps": totals.steps,
        "samples": totals.samples,
        "typical_step": totals.typical.total,
        **asdict(totals.typical),
        "sent": totals.step_sent / max(1, totals.steps),
    }


def _document(run: "RecordedRun") -> dict[str, Any]:
    from paceline.records.files import to_document

    return {
        "schema": SCHEMA,
        "settings": to_document(run.config.settings),
        "run": _started(run),
        "prediction": None if run.forecast is None else to_document(run.forecast),
        "rows": [row.to_json() for row in run.rows],
        "summary": run.summary.to_json(),
        "findings": _findings(run),
    }


def _started(run: "RecordedRun") -> dict[str, Any] | None:
    """What was about to run; a simulated run does not keep it."""
    from paceline.records.files import DamagedFile, read_json

    try:
        started = dict(read_json(run.folder.start))
    except (OSError, DamagedFile, TypeError, ValueError):
        return None
    started.pop("subject", None)
    return {**started, "folder": str(run.folder.path)}


def _findings(run: "RecordedRun") -> list[dict[str, Any]]:
    from paceline.records.files import DamagedFile, read_json

    try:
        found = read_json(run.folder.findings)["findings"]
    except (OSError, DamagedFile, LookupError, TypeError):
        return []
    return [one for one in found if isinstance(one, dict) and "text" in one]


def _text(run: "RecordedRun") -> str:
    from paceline.reports.summary import summary_text

    row = None if run.forecast is None else run.forecast.row
    timed = "replay" not in run.config.machinery
    text = summary_text(
        run.summary, str(run.folder.path), timed=timed, predicted=None if row is None else row.breakdown
    )
    notes = run.summary.notes
    said = [one["text"] for one in _findings(run) if one.get("sentence") not in notes]
    return "\n\n".join([text, *notes, *said])

"""Findings in words: after a run, in a comparison and in a report; and kept in the run folder."""

import logging
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from paceline.records.files import to_document, write_json
from paceline.reports.predict.sentences import typed
from paceline.studies.findings import Finding, Remedy, find
from paceline.studies.recorded import read_recorded

SCHEMA = 1
WIDTH = 120


def finding_text(finding: Finding) -> str:
    """The sentence, and what is predicted to help."""
    said = [f"{_change(one)} ({one.gain:.2g}x as fast)" for one in finding.remedies]
    advice = f" Predicted to help: {' or '.join(said)}." if said else ""
    return finding.sentence + advice


def _change(remedy: Remedy) -> str:
    ((name, value), *_) = remedy.change
    match remedy.place:
        case "job":
            return f"{name}={value} in the job"
        case "script":
            return f"{name.replace('_', ' ')} {value} in the script"
        case "launcher":
            rest = [one for one in remedy.change if one[0] not in ("nodes", "workers")]
            return f"start one process{f' with {typed(*rest)}' if rest else ''}"
        case "distribute":
            return f"{typed(*remedy.change)} with paceline.distribute() in the script"
        case "command":
            return typed(*remedy.change)


def findings_text(findings: Sequence[Finding], but: Sequence[str] = ()) -> str:
    """A paragraph each; those whose sentence is in ``but`` are left out, as they are told elsewhere."""
    told = [finding_text(one) for one in findings if one.sentence not in but]
    return "\n".join(line for text in told for line in wrap(text, WIDTH, break_on_hyphens=False))


def findings_document(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{**to_document(one), "text": finding_text(one)} for one in findings]


def diagnose(folder: Path) -> tuple[Finding, ...]:
    """The findings of a run that has just ended, kept in its folder. They never fail it: none is found then."""
    try:
        run = read_recorded(folder)
        found = find(run)
        write_json(run.folder.findings, {"schema": SCHEMA, "findings": findings_document(found)})
    except Exception:
        logging.getLogger(__name__).debug(
            "nothing is said of what kept %s from being faster", folder, exc_info=True
        )
        return ()
    return found

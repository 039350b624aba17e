"""``paceline compare``: runs and predictions side by side."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import RECORD
from paceline.records.files import json_text
from paceline.records.folder import named_path
from paceline.units import Share

CHECK_FAILED = 3


def compare(
    *paths: Path,
    max_slowdown: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", group=RECORD, negative=(), show_default=False)] = False,
) -> int:
    """Compare runs, or predictions, part by part: which is faster, by how much, and what explains most of it.

    The first one is what the others are compared with. Exit code 3 where one is slower than --max-slowdown allows.

    Args:
        paths: Run folders, or 'latest'; a run's own prediction.json, or files that 'paceline predict --out' wrote.
        max_slowdown: Fail where a later one takes longer a sample than the first by more than this, such as 5%.
        as_json: One JSON document on stdout instead of text.
    """
    from paceline.reports.compare import comparison_document, comparison_text, failures
    from paceline.studies.compare import compare as compare_paths

    allowed = None if max_slowdown is None else float(Share.parse(max_slowdown))
    found = compare_paths([named_path(path) for path in paths])
    if as_json:
        sys.stdout.write(f"{json_text(comparison_document(found, allowed))}\n")
    else:
        sys.stdout.write(f"{comparison_text(found)}\n")
    failed = [] if allowed is None else failures(found, allowed)
    if failed:
        sys.stderr.write(f"paceline: {'; '.join(failed)}\n")
    return CHECK_FAILED if failed else 0

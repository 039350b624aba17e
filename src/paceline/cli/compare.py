"""``paceline compare``: runs and predictions side by side."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import RECORD

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
    from paceline.api.compare import compare as compare_runs

    found = compare_runs(*paths, max_slowdown=max_slowdown)
    sys.stdout.write(f"{found.to_json() if as_json else found}\n")
    failed = found.to_dict()["failures"] if max_slowdown is not None else []
    if failed:
        sys.stderr.write(f"paceline: {'; '.join(failed)}\n")
    return CHECK_FAILED if failed else 0

"""``paceline calibrate --table FILE``: what one point of a table of measured epochs says about the rest."""

import json
from pathlib import Path


def fit_from_table(
    path: Path,
    start: str | None = None,
    collective: str | None = None,
    predict: str | None = None,
    *,
    as_json: bool,
) -> int:
    """Fit a table and print what is foretold beside what was measured.

    ``start`` is the point that is fitted to, "4x128"; ``predict`` names further points, "8x128,8x512".
    """
    from paceline.reports.table_fit import tell_fits
    from paceline.studies.calibrate.measured import read_measured
    from paceline.studies.calibrate.table import fit_table
    from paceline.studies.calibrate.table_fit import Point

    measured = read_measured(path)
    fits = fit_table(
        measured,
        start=None if start is None else Point.parse(start, "--from"),
        collective=collective,
        predict=[Point.parse(text, "--predict") for text in predict.split(",")] if predict else (),
    )
    told = tell_fits(fits, measured.model)
    print(json.dumps(told.document) if as_json else "\n".join([told.answer, "", *told.lines]))  # noqa: T201
    return 0

"""A prediction as people read it."""

from paceline.records.prediction import Prediction
from paceline.reports.predict.sentences import findings, verdict
from paceline.reports.predict.table import table_lines


def text_lines(prediction: Prediction) -> list[str]:
    """The answer, the table behind it, what follows, and what it all rests on."""
    lines = [verdict(prediction), "", heading(prediction), "", *table_lines(prediction), ""]
    for series in prediction.series:
        if len(prediction.series) > 1:
            lines.append(f"{series.strategy}:")
        indent = "  " if len(prediction.series) > 1 else ""
        lines += [f"{indent}{line}" for line in findings(series)]
    return [*lines, *_basis(prediction)]


def heading(prediction: Prediction) -> str:
    """What the table is about."""
    size = f"{prediction.name}, {prediction.parameters:,} parameters"
    if prediction.scaling == "strong":
        return f"{size}, a batch of {prediction.batch:,} divided among all workers"
    ways = f", {prediction.series[0].strategy}" if len(prediction.series) == 1 else ""
    return f"{size}, batch {prediction.batch:,} a worker{ways}"


def _basis(prediction: Prediction) -> list[str]:
    known = prediction.known
    return [
        "",
        f"Level: {known.level}. Compute: {known.compute}.",
        f"Links: {known.links}.",
        f"Interval: {known.interval}.",
    ]

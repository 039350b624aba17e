"""``paceline.compare``: runs and predictions side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult, flat
from paceline.errors import UsageError
from paceline.records.folder import named_path
from paceline.units import Share

if TYPE_CHECKING:
    from paceline.studies.compare import RunComparison


@naming_arguments
def compare(
    *runs: "str | Path | StudyResult[Any]", max_slowdown: str | float | None = None
) -> "StudyResult[RunComparison]":
    """Compare runs, or predictions, part by part: which is faster, by how much, and what explains most of it.

    Args:
        runs: What ``load_run``, ``train``, ``simulate`` or ``predict`` returned, run folders, or files of predictions;
            the first one is what the others are compared with.
        max_slowdown: "5%" or 0.05: ``to_dict()["failures"]`` names those that are slower a sample by more than this.

    Returns:
        A row a side; ``value`` is the ``RunComparison``; ``print`` shows the answer and the table behind it.
    """
    from paceline.reports.compare import comparison_document, comparison_text, side_document
    from paceline.studies.compare import compare as compare_read

    allowed = None if max_slowdown is None else float(Share.parse(str(max_slowdown)))
    found = compare_read([_read(one) for one in runs])
    return StudyResult(
        value=found,
        rows=[flat(side_document(one)) for one in found.sides],
        document=lambda: comparison_document(found, allowed),
        text=lambda: comparison_text(found),
        shown=("name", "source", "workers", "step_seconds", "step_spread", "samples_per_second", "sent"),
    )


def _read(one: Any) -> Any:
    from paceline.studies.predict.prediction import Prediction
    from paceline.studies.recorded import RecordedRun

    if isinstance(one, str | Path):
        return named_path(Path(one))
    value = one.value if isinstance(one, StudyResult) else one
    if not isinstance(value, RecordedRun | Prediction):
        raise UsageError(
            f"what is of type {type(value).__name__} cannot be compared: give run folders, loaded runs, "
            "predictions or their files"
        )
    return value

"""``paceline.explain``: what a collective does, round by round."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.api.arguments import naming_arguments, spec_with
from paceline.api.result import StudyResult

if TYPE_CHECKING:
    from paceline.codecs.base import Codec
    from paceline.reports.explain.document import Explanation
    from paceline.reports.explain.request import ExplainRequest


@naming_arguments
def explain(
    schedule: str,
    /,
    *,
    workers: int | None = None,
    hosts: str | Sequence[int] | None = None,
    op: str | None = None,
    codec: "str | Codec | None" = None,
    values: str | Iterable[Iterable[float]] | None = None,
    length: int | None = None,
    seed: int | None = None,
    segments: int | None = None,
) -> "StudyResult[Explanation]":
    """Show what a collective does, round by round, as ``paceline explain`` does.

    Args:
        schedule: Such as "ring"; "ring", "tree", "butterfly", "halving-doubling", "one-to-all", "hierarchical",
            "pairwise", or one of your own by import path.
        workers: Processes that take part (4).
        hosts: Workers per host: [2, 2] or "2,2".
        op: "sum", "mean", "max", "min" or "product"; with a codec, "sum" or "mean".
        codec: What happens to vectors that are encoded.
        values: What each process begins with: [[5, 2], [3, 8]] or "5 2; 3 8".
        length: Without values: values per process.
        seed: Decides the random values.
        segments: Segments that are pipelined through the schedule.

    Returns:
        A row a round; ``value`` is the ``Explanation``; ``print`` draws it, for at most 16 processes of 64 values.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from paceline.records.files import to_document
    from paceline.reports.explain.explanation import explain as explain_collective
    from paceline.reports.explain.request import WRITTEN

    found = explain_collective(explain_request(given), WRITTEN)
    rows = [
        {
            "stage": stage.title,
            "round": number,
            "title": step.title,
            "messages": len(step.messages),
            "sentence": step.sentence,
        }
        for stage in found.stages
        for number, step in enumerate(stage.steps, start=1)
    ]
    return StudyResult(
        value=found, rows=rows, document=lambda: to_document(found), text=lambda: text_of(found)
    )


def explain_request(given: Mapping[str, Any]) -> "ExplainRequest":
    from paceline.reports.explain.request import ExplainRequest

    asked = dict(given)
    if "hosts" in asked and not isinstance(asked["hosts"], str):
        asked["hosts"] = ",".join(map(str, asked["hosts"]))
    if "values" in asked and not isinstance(asked["values"], str):
        asked["values"] = "; ".join(" ".join(f"{float(one)!r}" for one in row) for row in asked["values"])
    if "codec" in asked:
        asked["codec"] = spec_with("codec", asked["codec"])
    return ExplainRequest(**asked)


def text_of(found: "Explanation") -> str:
    from paceline.reports.explain.render import explanation_lines

    check_drawn(found)
    return "\n".join(line.plain for line in explanation_lines(found))


def check_drawn(found: "Explanation") -> None:
    """Refuse to draw what is too large to be read; as a document it may be."""
    from paceline.reports.explain.request import DRAWN

    DRAWN.check(found.workers, len(found.result))


def check_workers_drawn(given: Mapping[str, Any]) -> None:
    """The same before anything is made of them, by how many workers are asked for."""
    from paceline.reports.explain.request import DRAWN, host_of_each

    host_of_each(explain_request(given), DRAWN)

"""``paceline.calibrate``: measure this machine, so that predictions know it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult, flat
from paceline.commands.process import run_json

CalibrateTask = Literal["machine", "device", "links", "record", "table"]


@naming_arguments
def calibrate(
    task: CalibrateTask = "machine",
    source: str | Path | None = None,
    /,
    *,
    seconds: float | None = None,
    threads: int | None = None,
    workers: str | int | None = None,
    busy: bool = False,
    profile: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    start: str | None = None,
    collective: str | None = None,
    predict: str | None = None,
    show: bool = True,
) -> StudyResult[dict[str, Any]]:
    """Measure this machine, or fit what was measured, as ``paceline calibrate`` does.

    Which arguments go with which task is said by the help of 'paceline calibrate TASK'.

    Args:
        task: "machine": all of it, in about 4 minutes, for every run on it; "device": how fast it computes; "links":
            links and contention, added to a profile; "record": correct a profile by a recorded run; "table": predict
            the rest of a table of measured epochs.
        source: Of "record", the run folder; of "table", the file.
        seconds: How long to measure computing.
        threads: Threads that a worker computes with.
        workers: Numbers of workers to measure links with, such as "2,4".
        busy: Measure even while other processes compute.
        profile: The profile that is added to, or corrected.
        out: Where to write the profile.
        name: What to call the machine.
        start: Of "table": the point that is fitted, workers x batch, such as "4x128".
        collective: Of "table": how gradients were exchanged.
        predict: Of "table": further points, "8x128,8x512".
        show: Print progress while it goes on.

    Returns:
        A row a kind of operator and a link, or a point of the table; ``value["profile"]`` is the file.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    for one in ("task", "source", "show"):
        given.pop(one, None)
    if "start" in given:
        given["from"] = given.pop("start")
    words = ["calibrate", task, *([] if source is None else [str(source)])]
    document = run_json(words, given, show=show)
    return StudyResult(
        value=document,
        rows=list(_rows(document)),
        document=lambda: document,
        text=lambda: "\n".join(_lines(document)),
    )


def _links(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was measured of links: of several numbers of workers, or of one."""
    found = document.get("links", [])
    return list(found) if "device" in document or "workers" not in document else [document]


def _rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, (median, worst) in document.get("device", {}).get("residuals", {}).items():
        yield {"what": kind, "median_error": median, "percentile_90_error": worst}
    for fit in _links(document):
        for link in fit["links"]:
            yield {"what": link["name"], "workers": fit["workers"], **flat(link)}
    for fit in document.get("fits", []):
        for point in fit["points"]:
            yield {"collective": fit["collective"], **flat(point)}
    if "record" in document:
        yield flat(document["record"])


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    from paceline.records.files import from_document
    from paceline.reports.calibrate import render_device, render_links
    from paceline.reports.text import aligned
    from paceline.studies.calibrate.device_fit import DeviceFit
    from paceline.studies.calibrate.link_fit import ContentionFit

    if "device" in document:
        yield from render_device(from_document(document["device"], DeviceFit))
    for fit in _links(document):
        kept = {name: value for name, value in fit.items() if name not in ("schema", "profile")}
        yield from render_links(from_document(kept, ContentionFit))
    if "fits" in document or "record" in document:
        rows = list(_rows(document))
        titles = list(dict.fromkeys(name for row in rows for name in row))
        yield from aligned(titles, [[str(row.get(name, "")) for name in titles] for row in rows])
    if "profile" in document:
        yield f"profile: {document['profile']}"

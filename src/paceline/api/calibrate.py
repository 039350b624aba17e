"""``paceline.calibrate``: measure this machine, so that predictions know it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult, flat
from paceline.api.runs import path_of_run
from paceline.commands.process import run_json
from paceline.errors import ArgumentError

CalibrateTask = Literal["machine", "device", "links", "record", "table"]

TAKEN: Mapping[CalibrateTask, Sequence[str]] = {
    "machine": ("seconds", "threads", "workers", "busy", "out", "name"),
    "device": ("seconds", "threads", "busy", "out", "name"),
    "links": ("workers", "busy", "profile", "out"),
    "record": ("profile", "threads", "out", "name"),
    "table": ("start", "collective", "predict"),
}
"""The arguments of each task."""
SOURCES: Mapping[CalibrateTask, str] = {
    "record": "the folder of a run, or what load_run returned",
    "table": "a file of measured epochs, such as 'table.toml'",
}
OPTIONS = {"start": "from"}
"""Arguments that the command calls otherwise: a word of Python's."""


@naming_arguments
def calibrate(
    task: CalibrateTask = "machine",
    source: "str | Path | StudyResult[Any] | None" = None,
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

    Of "machine": ``seconds``, ``threads``, ``workers``, ``busy``, ``out`` and ``name``; of "device" the same but
    ``workers``; of "links": ``workers``, ``busy``, ``profile`` and ``out``; of "record": ``profile``, ``threads``,
    ``out`` and ``name``; of "table": ``start``, ``collective`` and ``predict``.

    Args:
        task: "machine": all of it, in about 4 minutes, for every run on it; "device": how fast it computes; "links":
            links and contention, added to a profile; "record": correct a profile by a recorded run; "table": predict
            the rest of a table of measured epochs.
        source: Of "record", the run folder, "latest", or what ``load_run`` returned; of "table", the file.
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
    _check_task(task, source, [name for name, value in given.items() if value is not False])
    words = ["calibrate", task, *([] if source is None else [str(_path_of(source))])]
    document = run_json(words, {OPTIONS.get(name, name): value for name, value in given.items()}, show=show)
    text = "\n".join(_lines(task, document))
    return StudyResult(
        value=document, rows=list(_rows(document)), document=lambda: document, text=lambda: text
    )


def _check_task(task: CalibrateTask, source: object, given: Sequence[str]) -> None:
    if (source is None) == (task in SOURCES):
        needs = f"needs {{source}}: {SOURCES[task]}" if source is None else "takes no {source}; leave it out"
        raise ArgumentError(f"calibrate({task!r}) {needs}", source=None)
    for name in given:
        if name not in TAKEN[task]:
            others = ", ".join(repr(other) for other, taken in TAKEN.items() if name in taken)
            raise ArgumentError(
                f"{{{name}}} has no place in calibrate({task!r}), only in {others}; leave it out",
                **{name: None},
            )


def _path_of(source: "str | Path | StudyResult[Any]") -> Path:
    if (path := path_of_run(source)) is None:
        raise ArgumentError(
            "{source} is in no folder: give the folder of a run, or what load_run returned", source=None
        )
    return path


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


def _lines(task: CalibrateTask, document: Mapping[str, Any]) -> Iterator[str]:
    """What the command prints, by its own renderers."""
    from paceline.records.files import from_document
    from paceline.reports.calibrate import (
        fits_of,
        following,
        render_device,
        render_fits,
        render_links,
        render_profile,
        render_record,
    )
    from paceline.studies.calibrate.device_fit import DeviceFit
    from paceline.studies.calibrate.link_fit import ContentionFit
    from paceline.studies.calibrate.record import RecordFit

    if "device" in document:
        yield from render_device(from_document(document["device"], DeviceFit))
    for fit in _links(document):
        yield from render_links(from_document(fit, ContentionFit))
    if "record" in document:
        yield from render_record(from_document(document["record"], RecordFit))
    if "fits" in document:
        yield from render_fits(fits_of(document["fits"]), document["model"])
    if "profile" in document:
        written = Path(document["profile"])
        added = task == "links"
        yield f"added to: {written}" if added else render_profile(written, document.get("replaced"))
        yield following(written, "paceline train" if task == "machine" else "")

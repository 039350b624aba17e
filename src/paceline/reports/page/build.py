"""From what a user names to its page: recognises the kind of a path, makes the page, writes the file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json, replacing
from paceline.records.folder import RunFolder
from paceline.reports.page.document import ReportPage, render_page
from paceline.reports.page.run import Repeat, compared_page, run_page
from paceline.reports.page.studies import convergence_page, prediction_page, profile_page
from paceline.reports.page.sweep import sweep_page
from paceline.studies.recorded import read_recorded

NAME = "report.html"
LARGEST = 64_000_000
"""Bytes of a JSON file that is looked into for what it is."""


@dataclass(frozen=True, kw_only=True)
class StudyKind:
    """A result that has a page of its own; a new one is a row of STUDIES."""

    name: str
    file: str
    """What a folder of it holds; empty for a file."""
    is_it: Callable[[Mapping[str, Any]], bool]
    """Whether this JSON document is of it."""
    page: Callable[[Path], ReportPage]


STUDIES = (
    StudyKind(
        name="a study of convergence",
        file="study.json",
        is_it=lambda one: "strategies" in one.get("study", ()) and "kind" not in one["study"],
        page=convergence_page,
    ),
    StudyKind(
        name="a sweep", file="study.json", is_it=lambda one: "kind" in one.get("study", ()), page=sweep_page
    ),
    StudyKind(
        name="a prediction", file="", is_it=lambda one: one.get("kind") == "prediction", page=prediction_page
    ),
    StudyKind(
        name="a calibration profile",
        file="",
        is_it=lambda one: "device" in one and "links" in one,
        page=profile_page,
    ),
)
KNOWN = "the folder of a run or of a 'paceline bench' study, a prediction or a calibration profile"


def study_of(path: Path) -> StudyKind | None:
    """Which study a path is of; None for a run."""
    if not path.exists():
        raise UsageError(f"there is no {path}: name {KNOWN}")
    if path.is_dir() and RunFolder(path).config.exists():
        return None
    for kind in STUDIES:
        file = path / kind.file if path.is_dir() and kind.file else path
        if file.is_file() and bool(kind.file) == path.is_dir() and kind.is_it(_document(file)):
            return kind
    if path.is_file() and _document(path).get("kind") == "forecast":
        raise UsageError(
            f"{path} is what a run predicted of itself, which is on the run's page: name its folder, {path.parent}"
        )
    raise UsageError(f"{path} is nothing that can be reported: name {KNOWN}")


def _document(file: Path) -> Mapping[str, Any]:
    try:
        document: Any = read_json(file) if file.stat().st_size <= LARGEST else None
    except (DamagedFile, OSError):
        return {}
    return document if isinstance(document, dict) else {}


def make_page(paths: Sequence[Path], repeat: Repeat) -> ReportPage:
    """The page of one run or study, or of several runs beside each other."""
    kinds = [study_of(path) for path in paths]
    studies = [(path, kind) for path, kind in zip(paths, kinds, strict=True) if kind is not None]
    if not studies:
        runs = [read_recorded(path) for path in dict.fromkeys(path.resolve() for path in paths)]
        return run_page(runs[0], repeat) if len(runs) == 1 else compared_page(runs, repeat)
    path, kind = studies[0]
    if len(paths) > 1:
        raise UsageError(f"{path} is {kind.name}, which has a page of its own: name it alone, or only runs")
    return kind.page(path)


def usual_place(path: Path) -> Path:
    """In the folder that is reported, or beside a file: ``profile.json`` becomes ``profile.html``."""
    return path / NAME if path.is_dir() else path.with_suffix(".html")


def write_report(paths: Sequence[Path], out: Path | None, repeat: Repeat) -> Path:
    target = out or usual_place(paths[0])
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is no file that can be replaced: name a new one, such as {NAME}")
    page = make_page(paths, repeat)
    try:
        with replacing(target) as file:
            file.write(render_page(page).encode())
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror}): name another file") from error
    return target

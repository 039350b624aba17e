"""``paceline report``: a page of what was recorded, measured or predicted."""

import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.api.report import report as make_report
from paceline.records.folder import short_path
from paceline.records.summary import Observer, Started, Summary

SLOW = 3.0
"""Seconds after which it is said that something goes on, and between two such signs."""


def report(
    *paths: Path,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    open_: Annotated[bool, Parameter(name="--open", negative=(), show_default=False)] = False,
) -> None:
    """Make a page of a run, of several beside each other, or of a study.

    One file with all its charts, that needs no network: the answer and what was found first, then loss and accuracy,
    where the time went, a timeline, the machine, and how to repeat it.

    Args:
        paths: Run folders, or 'latest'; or one folder of a 'paceline bench' study, prediction or profile (JSON files).
        out: The file to write (default: report.html in the first folder).
        open_: Open the page in the browser.
    """
    with _signs_of_life("making the report"):
        target = make_report(*paths, out=out)
    print(f"report: {target}")  # noqa: T201
    if open_ and not webbrowser.open(target.resolve().as_uri()):
        sys.stderr.write(f"no browser could be started; open {target} yourself\n")


@contextmanager
def _signs_of_life(words: str) -> Iterator[None]:
    """A line on stderr now and then while a block goes on; none for a quick one."""
    over, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(SLOW):
            sys.stderr.write(f"{words}: {time.monotonic() - begun:.0f} s\n")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


class ReportObserver(Observer):
    """Ends a run with the line that names its report, made where that was asked for, or says how to make it."""

    _folder: str | None = None
    _finished = False

    def __init__(self, *, make: bool, quiet: bool) -> None:
        self._make, self._quiet = make, quiet

    def started(self, run: Started) -> None:
        self._folder = run.folder

    def finished(self, summary: Summary) -> None:  # noqa: ARG002
        self._finished = True

    def close(self) -> None:
        """Where the record is whole: nothing else is written to it after the run is closed."""
        if not self._finished or self._folder is None:
            return
        self._finished = False
        said = f"paceline report {short_path(self._folder)}"
        if self._make:
            try:
                said = str(make_report(self._folder))
            except Exception as error:  # a run that is done is not failed by its picture
                sys.stderr.write(f"no report could be made: {error}\n")
        if not self._quiet:
            print(f"report: {said}", flush=True)  # noqa: T201

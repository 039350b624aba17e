"""Files of one JSON document a line, written as a run goes on and read after any kind of end."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from paceline.records.files import DamagedFile, replacing

T = TypeVar("T")

encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class LineWriter(Generic[T]):
    """Adds lines to a file. Things are kept until ``flush``: do not change them after ``append``.

    One thread appends; any may flush, so that a process can be ended while that one is stuck.
    """

    def __init__(self, path: Path, text: Callable[[T], str], at_once: int) -> None:
        path.parent.mkdir(exist_ok=True)  # and no more: a run folder that is gone stays gone
        self._file = path.open("a", encoding="utf-8")
        self._text = text
        self._at_once = at_once
        self._kept: list[T] = []
        self._writing = threading.Lock()

    def append(self, thing: T) -> None:
        """Add a line; about a microsecond, until so many have come together that they are written."""
        self._kept.append(thing)
        if len(self._kept) >= self._at_once:
            self.flush()

    def flush(self) -> None:
        """Hand every line so far to the operating system."""
        with self._writing:
            kept, self._kept = self._kept, []
            if kept and not self._file.closed:
                self._file.write("".join([f"{self._text(thing)}\n" for thing in kept]))
                self._file.flush()

    def close(self) -> None:
        """Write what is left; may be called twice."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line. A last line without its end is what a crash leaves, and is skipped."""
    for number, _, document in _whole_lines(path):
        if document is None:
            raise DamagedFile(path, f"is damaged: line {number} is not a record")
        yield document


def repair(
    path: Path, keep: Callable[[int, dict[str, Any]], bool], stand_in: Callable[[int], str]
) -> list[str]:
    """Rewrite a file for a run that goes on; return a sentence if any of its lines was damaged.

    ``keep`` is given each line's number, from 1, and its document: it says whether the line stays, and raises where
    it is no record. Such a line becomes the ``stand_in`` of its number, or goes where that is empty. A torn last line
    goes as well. No file is fine. The file is replaced in one go: close its writer first.
    """
    if not path.exists():
        return []
    damaged: list[int] = []
    with replacing(path) as file:
        for number, line, document in _whole_lines(path):
            try:
                if document is None:
                    raise ValueError("not a document")
                stays = keep(number, document)
            except NO_RECORD:
                damaged.append(number)
                line, stays = _line(stand_in(number)), True
            if stays:
                file.write(line)
    return [_damage(path, damaged)] if damaged else []


def _damage(path: Path, lines: list[int]) -> str:
    """One sentence, however many lines: it is sent to the other workers."""
    if len(lines) == 1:
        return f"{path}: line {lines[0]} is damaged; it is left out of the record and its totals"
    return (
        f"{path}: {len(lines)} lines are damaged, the first is line {lines[0]}; "
        "they are left out of the record and its totals"
    )


NO_RECORD = (ValueError, LookupError, TypeError, AttributeError)
"""What reading a document that is no record can lead to."""


def _line(text: str) -> bytes:
    return f"{text}\n".encode() if text else b""


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Each line's number, bytes and document; None where it holds none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
            yield number, line, document if isinstance(document, dict) else None

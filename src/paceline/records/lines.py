"""Files of one JSON document a line, written as a run goes on and read after any kind of end."""

import json
import threading
from collections.abc import Callable, Iterator
from itertools import islice
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
        path.parent.mkdir(parents=True, exist_ok=True)
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
    for _, document in _whole_lines(path):
        yield document


def truncate_after(path: Path, step: int) -> None:
    """Drop every line beyond a step, and a torn last one, for a run that goes on from there; no file is fine.

    The file is replaced in one go: close its writer first.
    """
    if not path.exists():
        return
    with replacing(path) as file:
        for line, document in _whole_lines(path):
            if document["step"] <= step:
                file.write(line)


def keep_first(path: Path, count: int) -> int:
    """Keep so many lines, for a run that goes on from where there were so many; return how many there are.

    No file is fine. The file is replaced in one go: close its writer first.
    """
    if not path.exists():
        return 0
    kept = 0
    with replacing(path) as file:
        for line, _ in islice(_whole_lines(path), count):
            file.write(line)
            kept += 1
    return kept


def _whole_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                document = json.loads(line)
            except ValueError as error:
                raise DamagedFile(path, f"is damaged: line {number} is not a record") from error
            if not isinstance(document, dict):
                raise DamagedFile(path, f"is damaged: line {number} is not a record")
            yield line, document

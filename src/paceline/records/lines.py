"""Files of one JSON document a line, written as a run goes on and read after any kind of end."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from paceline.records.files import DamagedFile, replacing

T = TypeVar("T")


class LineWriter(Generic[T]):
    """Adds lines to a file. Things are kept until ``flush``: do not change them after ``append``.

    One thread appends; any may flush, so that a process can be ended while that one is stuck. Numbers that are not
    finite become null.
    """

    def __init__(self, path: Path, at_once: int) -> None:
        path.parent.mkdir(exist_ok=True)  # and no more: a run folder that is gone stays gone
        self._file = path.open("ab")
        self._at_once = at_once
        self._kept: list[T] = []
        self._writing = threading.Lock()

    def append(self, thing: T) -> None:
        """Add a line; about a microsecond, until ``at_once`` of them are written together."""
        self._kept.append(thing)
        if len(self._kept) >= self._at_once:
            self.flush()

    def flush(self) -> None:
        """Hand every line so far to the operating system."""
        with self._writing:
            kept, self._kept = self._kept, []
            if kept and not self._file.closed:
                self._file.write(b"".join([encode_line(thing) for thing in kept]))
                self._file.flush()

    def close(self) -> None:
        """Write what is left; may be called twice."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_line(thing: Any) -> bytes:
    return msgspec.json.encode(thing) + b"\n"


def read_lines(path: Path, kind: type[T], what: str) -> Iterator[T]:
    """Every whole line as a ``kind``. A last line without its end is what a crash leaves, and is skipped."""
    for number, _, thing in _whole_lines(path, kind):
        if thing is None:
            raise DamagedFile(path, f"is damaged: line {number} is not {what}")
        yield thing


def repair(
    path: Path, kind: type[T], keep: Callable[[int, T], bool], stand_in: Callable[[int], T | None]
) -> list[str]:
    """Rewrite a file for a run that goes on; return a sentence if any of its lines was damaged.

    ``keep`` is given each line's number, from 1, and what it holds, and says whether it stays; a LookupError says
    that it is damaged. A damaged line becomes the ``stand_in`` of its number, or goes where that is None. A torn last
    line goes as well. No file is fine. The file is replaced in one go: close its writer first.
    """
    if not path.exists():
        return []
    damaged: list[int] = []
    with replacing(path) as file:
        for number, line, thing in _whole_lines(path, kind):
            try:
                if thing is None:
                    raise LookupError("not of its kind")
                file.write(line if keep(number, thing) else b"")
            except LookupError:
                damaged.append(number)
                other = stand_in(number)
                file.write(b"" if other is None else encode_line(other))
    if not damaged:
        return []
    lines = f"line {damaged[0]} is damaged; it is"
    if len(damaged) > 1:  # one sentence, however many: it is sent to the other workers
        lines = f"{len(damaged)} lines are damaged, the first is line {damaged[0]}; they are"
    return [f"{path}: {lines} left out of the record and its totals"]


def _whole_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, bytes, T | None]]:
    """Each line's number, bytes and content; None where it is damaged."""
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                thing = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                thing = None
            yield number, line, thing

"""Files that are either whole or not there, JSON documents, and files of one JSON document a line."""

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import msgspec

T = TypeVar("T")


class DamagedFile(Exception):
    """A file that is not what was once written: the message names it and says what is wrong."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path} {wrong}")

    @property
    def told(self) -> str:
        """The sentence for a user, who named the record."""
        return f"{self}; use a record that is whole"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces ``path`` when the block ends; an error leaves ``path`` as it was.

    When the block has ended, the file survives a loss of power. A crash may leave ``.<name>.*.tmp``.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def listing(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except FileNotFoundError:  # another process has removed the folder after glob checked that it exists
        return []


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: Any) -> None:
    """Replace a file in a folder that is there: a run folder that was deleted stays deleted."""
    with replacing(path) as file:
        file.write(f"{json_text(document)}\n".encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, f"is not a JSON document: {error}") from error


def json_text(document: Any) -> str:
    """Indented JSON; numbers that are not finite become null."""
    return json.dumps(_plain(document), indent=2)


def _plain(document: Any) -> Any:
    """The document as it is read back: finite numbers, lists, and keys that are strings."""
    return msgspec.json.decode(msgspec.json.encode(document, enc_hook=_builtin))


def _builtin(value: Any) -> Any:
    """Text that is more than a string, and numpy's numbers."""
    return str(value) if isinstance(value, str) else float(value)


def to_document(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_builtin)


def from_document(document: Any, kind: type[T]) -> T:
    """The value of type ``kind`` that ``to_document`` gave; a ValueError names the first field of another type."""
    return msgspec.convert(document, kind, str_keys=True)


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    write_json(path, {**document, "digest": digest_of(document)})


def read_sealed(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise DamagedFile(path, "is not a document")
    if document.pop("digest", None) != digest_of(document):
        raise DamagedFile(path, "was altered since it was written")
    return document


def digest_of(document: Any) -> str:
    """SHA-256 of a JSON document, whatever the order of its keys and the space between them."""
    text = json.dumps(_plain(document), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


LATEST = 1.0
"""Seconds after which the next line is written with all that were kept, for those who follow the file."""


class LineWriter(Generic[T]):
    """Adds lines to a file. Things are kept until ``flush``: do not change them after ``append``.

    They are flushed when there are ``at_once`` of them, or with the first that comes LATEST seconds after the last
    flush. One thread appends; any may flush, so that a process can be ended while that one is stuck. Numbers that are
    not finite become null.
    """

    def __init__(self, path: Path, at_once: int = 2048) -> None:
        path.parent.mkdir(exist_ok=True)  # and no more: a run folder that was deleted stays deleted
        self._file = path.open("ab")
        self._at_once = at_once
        self._kept: list[T] = []
        self._due = time.monotonic() + LATEST
        self._writing = threading.Lock()

    def append(self, thing: T) -> None:
        self._kept.append(thing)
        if len(self._kept) >= self._at_once or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        with self._writing:
            kept, self._kept = self._kept, []
            self._due = time.monotonic() + LATEST
            if kept and not self._file.closed:
                self._file.write(b"".join([encode_line(thing) for thing in kept]))
                self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_line(thing: Any) -> bytes:
    return msgspec.json.encode(thing) + b"\n"


_UNDECODABLE = (msgspec.MsgspecError, LookupError, UnicodeDecodeError, RecursionError)


def read_lines(path: Path, decode: Callable[[bytes], T], what: str) -> Iterator[T]:
    """Every whole line; a line torn by a crash is skipped, a damaged one raises DamagedFile."""
    for number, _, thing in _whole_lines(path, decode):
        if thing is None:
            raise DamagedFile(path, f"is damaged: line {number} is not {what}")
        yield thing


def read_blocks(path: Path, decode: Callable[[bytes], T], what: str, blocks: int, size: int) -> list[list[T]]:
    """The whole lines within ``blocks`` ranges of ``size`` bytes, evenly spaced from the first to the last one."""
    found = []
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        for place in range(blocks):
            begin = (end - size) * place // max(1, blocks - 1)
            file.seek(max(0, begin - 1))
            # The byte before tells whether the range begins with a whole line.
            lines = file.read(size + 1).splitlines(keepends=True)[1 if begin else 0 :]
            found.append([_decoded(path, line, decode, what) for line in lines if line.endswith(b"\n")])
    return found


def _decoded(path: Path, line: bytes, decode: Callable[[bytes], T], what: str) -> T:
    try:
        return decode(line)
    except _UNDECODABLE as error:
        raise DamagedFile(path, f"is damaged: a line is not {what}") from error


def repair(
    path: Path,
    decode: Callable[[bytes], T],
    keep: Callable[[int, T | None], bool],
    stand_in: Callable[[T | None], T] | None = None,
) -> list[str]:
    """Rewrite a file for a run that resumes; return a sentence if any of its lines was damaged.

    ``keep`` is given each line's number, from 1, and the last whole line so far. A damaged line becomes the
    ``stand_in`` of the last whole one, or goes where there is no such function. A torn last line goes as well. The
    file may be missing. It is replaced in one go: close its writer first.
    """
    if not path.exists():
        return []
    last, damaged = None, []
    with replacing(path) as file:
        for number, line, thing in _whole_lines(path, decode):
            if thing is None:
                damaged.append(number)
                line = b"" if stand_in is None else encode_line(stand_in(last))
            else:
                last = thing
            file.write(line if keep(number, last) else b"")
    if not damaged:
        return []
    # One sentence, however many lines: it is sent to the other workers.
    return [f"{path}: damaged lines, the first of {len(damaged)} is line {damaged[0]}; they are in no total"]


def _whole_lines(path: Path, decode: Callable[[bytes], T]) -> Iterator[tuple[int, bytes, T | None]]:
    """Each line's number, bytes and content; None where it is damaged."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                thing = decode(line)
            except _UNDECODABLE:
                thing = None
            yield number, line, thing

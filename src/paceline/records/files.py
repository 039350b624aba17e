"""Files that are either whole or not there: written beside their place, then moved into it."""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from paceline.errors import UsageError

T = TypeVar("T")


class DamagedFile(Exception):
    """A file that is not what was once written: the message names it and says what is wrong."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path} {wrong}")
        self.path = path
        self.wrong = wrong


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that takes the place of ``path`` when the block ends; an error leaves ``path`` as it was.

    When the block has ended, the file survives a loss of power. A crash may leave what ``leftovers`` finds.
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


def leftovers(folder: Path, name: str) -> list[Path]:
    """What crashed attempts to write ``folder / name`` have left; nobody reads them."""
    return listing(folder, f".{name}.*.tmp")


def listing(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match; none where somebody else has just removed the folder."""
    try:
        return list(folder.glob(pattern))
    except FileNotFoundError:  # glob checks that the folder is there and then opens it
        return []


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document that people can read; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(finite(document), indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Read what ``write_json`` wrote, or say which file is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, f"is not a JSON document: {error}") from error


def to_document(value: Any) -> Any:
    """A dataclass and all that is in it as plain JSON values."""
    return msgspec.to_builtins(value, str_keys=True)


def from_document(document: Any, kind: type[T]) -> T:
    """The value of type ``kind`` that ``to_document`` gave; a ValueError names the first field of another type."""
    return msgspec.convert(document, kind, str_keys=True)


def write_document(path: Path, value: Any, *, schema: int) -> None:
    write_json(path, {"schema": schema, **to_document(value)})


def read_document(path: Path, kind: type[T], *, what: str, schema: int) -> T:
    """Read what ``write_document`` wrote, every field checked; ``what`` names it in messages: "a profile".

    DamagedFile for what it never wrote, UsageError for what another version of paceline did.
    """
    document = read_json(path)
    found = document.pop("schema", None) if isinstance(document, dict) else None
    if type(found) is not int:
        raise DamagedFile(path, f"is not {what} of paceline")
    if found != schema:
        version = "an older" if found < schema else "a newer"
        raise UsageError(
            f"{path} is {what} of schema {found}, made by {version} version of paceline; this one reads schema "
            f"{schema}: use that version, or make it again"
        )
    try:
        return from_document(document, kind)
    except msgspec.ValidationError as error:
        raise DamagedFile(path, f"is not {what}: {error}") from error


def write_sealed(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document with its own SHA-256 in it, so that no altered one is taken for it."""
    write_json(path, {**document, "digest": digest_of(document)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what ``write_sealed`` wrote, without the digest, or say which file is damaged."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise DamagedFile(path, "is not a document")
    digest = document.pop("digest", None)
    if digest != digest_of(document):
        raise DamagedFile(path, "was altered since it was written")
    return document


def digest_of(document: Any) -> str:
    """SHA-256 of a JSON document, whatever the order of its keys and the space between them."""
    plain = json.loads(json.dumps(finite(document)))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def finite(document: Any) -> Any:
    if isinstance(document, float):
        return document if math.isfinite(document) else None
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    return document

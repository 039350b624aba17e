"""What studies that run a grid of cells share: a folder that resumes, spreads, and Ctrl-C where it does no harm."""

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from paceline.errors import UsageError
from paceline.records.files import (
    DamagedFile,
    from_document,
    read_sealed,
    to_document,
    write_sealed,
)
from paceline.records.folder import check_parent
from paceline.runtimes.config import import_paths
from paceline.runtimes.settings import Settings, read_exactly
from paceline.specs.source import check_trusted, fingerprints

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)

Show = Callable[[float, str], None]
"""Gets the part of the work that is done, 0 to 1, and a few words."""


class GridStudy(Protocol[C_contra]):
    """All that decides the results of its cells; a cell is one run."""

    @property
    def identity(self) -> str:
        """What all cells have in common, as a digest: results of studies that agree in it may be compared."""
        ...

    @property
    def common(self) -> Mapping[str, Any]:
        """The same by name, to say in what two studies differ."""
        ...

    @property
    def variants(self) -> Sequence[Settings]:
        """Settings that name all code of a user that any cell runs; found without importing any of it."""
        ...

    def digest(self, cell: C_contra, /) -> str:
        """Of all that decides one cell's result, the user's own code included."""
        ...

    def words(self, cell: C_contra, /) -> str:
        """What a cell is, for the name of its file."""
        ...


class CellOutcome(Protocol[C_co]):
    """What one cell came to."""

    @property
    def cell(self) -> C_co: ...


S = TypeVar("S", bound=GridStudy[Any])
R = TypeVar("R", bound=CellOutcome[Any])


@dataclass(frozen=True)
class GridFolder(Generic[S, C, R]):
    """Knows the names of its files: what is studied, and a small file for every cell that is done.

    Two commands may use it at once: a file is whole or not there.
    """

    path: Path
    schema: ClassVar[int]
    study_type: ClassVar[type[Any]]
    result_type: ClassVar[type[Any]]

    @classmethod
    def below(cls, parent: Path, job: str, study: S) -> Self:
        """The folder that a study of these settings always has; other settings have another one."""
        return cls(parent / f"{plain_name(job)}-{study.identity[:8]}")

    @property
    def study(self) -> Path:
        return self.path / "study.json"

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    def cell(self, study: S, cell: C) -> Path:
        return self.cells / f"{plain_name(study.words(cell))}-{study.digest(cell)[:12]}.json"

    def open(self, study: S) -> None:
        """Make the folder of this study, or go on with it; refuse one whose runs cannot be compared with these."""
        if self.study.exists():
            other = self.read()
            if other.identity != study.identity:
                raise UsageError(
                    f"{self.path} holds a study of other settings ({_difference(other, study)}), so that its runs "
                    "cannot be compared with these; name another folder, or resume that one"
                )
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} holds something else and no study; name a new folder")
        check_parent(self.path)
        code = {file: digest for path in _own_code(study) for file, digest in fingerprints(path).items()}
        self.path.mkdir(parents=True, exist_ok=True)
        write_sealed(self.study, {"schema": self.schema, "study": to_document(study), "code": code})

    def read(self, *, trusted: bool = False) -> S:
        """The study as it was last asked for; unless ``trusted``, only to look at, with none of its code run."""
        try:
            document = read_sealed(self.study)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self.path} is not the folder of a study: it holds no study.json") from None
        except (OSError, DamagedFile) as error:
            raise UsageError(f"{self.study} cannot be read ({error}); begin in a new folder") from error
        if document.get("schema") != self.schema:
            raise UsageError(
                f"{self.study} is of schema {document.get('schema')}, made by another version of paceline; this one "
                f"reads schema {self.schema}: begin in a new folder"
            )
        study: S = read_exactly(document["study"], self.study_type)
        if trusted:
            for path in _own_code(study):
                check_trusted(path, document["code"], self.path, str(self.path), "begin in a new folder")
        return study

    def done(self, study: S, cells: Sequence[C]) -> dict[C, R]:
        """Cells of exactly these settings that are kept here; a damaged file counts as none."""
        found = {cell: read_kept(self.cell(study, cell), self.result_type) for cell in cells}
        return {cell: result for cell, result in found.items() if result is not None}

    def keep(self, study: S, result: R) -> None:
        document = {
            "schema": self.schema,
            "settings": study.digest(result.cell),
            "result": to_document(result),
        }
        path = self.cell(study, result.cell)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, document)


T = TypeVar("T")


def read_kept(path: Path, kind: type[T]) -> T | None:
    """The result in a sealed file; None where it is missing, damaged, or of another version."""
    try:
        return from_document(read_sealed(path)["result"], kind)
    except (OSError, DamagedFile, KeyError, ValueError):
        return None


def plain_name(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", words).strip("-.")[-80:]


def _own_code(study: GridStudy[Any]) -> list[str]:
    return sorted({path for one in study.variants for path in import_paths(one)})


def _difference(one: GridStudy[Any], two: GridStudy[Any]) -> str:
    """The first setting in which two studies differ."""
    was, now = one.common, two.common
    for name, old in was.items():
        if old != now.get(name):
            return f"{name.replace('_', ' ')} {old} there, {now.get(name)} here"
    return "the same in other words"


@dataclass(frozen=True)
class Spread:
    """Over seeds or repeats; infinite where a run never got there."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@contextmanager
def held_interrupts() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt where the given function is called, and nowhere else.

    Python would raise it anywhere, also in a hook that runs after a fork, where exceptions are ignored. Where this is
    not the main thread, which gets the signals, nothing is held.
    """
    asked = threading.Event()

    def check_interrupt() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check_interrupt
        return
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield check_interrupt
    finally:
        signal.signal(signal.SIGINT, before)

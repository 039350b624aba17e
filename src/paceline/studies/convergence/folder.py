"""The folder of a study: what is compared, and a small file for every run that is done."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from paceline.errors import UsageError
from paceline.records.files import (
    DamagedFile,
    from_document,
    read_sealed,
    to_document,
    write_sealed,
)
from paceline.records.folder import check_parent
from paceline.runtimes.config import import_paths, resolved
from paceline.runtimes.settings import read_exactly
from paceline.specs.source import check_trusted, fingerprints
from paceline.studies.convergence.result import SCHEMA, CellResult
from paceline.studies.convergence.study import ConvergenceStudy, GridCell


@dataclass(frozen=True)
class StudyFolder:
    """Knows the names of its files. Two commands may use it at once: equal runs leave equal files."""

    path: Path

    @classmethod
    def below(cls, parent: Path, job: str, study: ConvergenceStudy) -> Self:
        """The folder that a study of these settings always has; other settings have another one."""
        return cls(parent / f"{_plain(job)}-{study.identity[:8]}")

    @property
    def study(self) -> Path:
        return self.path / "study.json"

    @property
    def chart(self) -> Path:
        return self.path / "convergence.svg"

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    def cell(self, study: ConvergenceStudy, cell: GridCell) -> Path:
        words = f"{cell.pair.strategy}-{cell.pair.codec}-seed-{cell.seed}"
        return self.cells / f"{_plain(words)}-{study.digest(cell)[:12]}.json"

    def open(self, study: ConvergenceStudy) -> None:
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
        code = {
            file: digest
            for pair in study.pairs
            for path in import_paths(study.settings_of(GridCell(pair, study.seeds[0])))
            for file, digest in fingerprints(path).items()
        }
        document = {"schema": SCHEMA, "study": to_document(study), "code": code}
        write_sealed(self.study, document)

    def read(self, *, trusted: bool = False) -> ConvergenceStudy:
        """The study as it was last asked for; unless ``trusted``, only to look at, with none of its code run."""
        try:
            document = read_sealed(self.study)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self.path} is not the folder of a study: it holds no study.json") from None
        except (OSError, DamagedFile) as error:
            raise UsageError(f"{self.study} cannot be read ({error}); begin in a new folder") from error
        if document.get("schema") != SCHEMA:
            raise UsageError(
                f"{self.study} is of schema {document.get('schema')}, made by another version of paceline; this one "
                f"reads schema {SCHEMA}: begin in a new folder"
            )
        study = read_exactly(document["study"], ConvergenceStudy)
        if trusted:
            for path in self._own_code(study):
                check_trusted(path, document["code"], self.path, str(self.path), "begin in a new folder")
        return study

    def _own_code(self, study: ConvergenceStudy) -> set[str]:
        """Import paths that the study names, found without importing any of them."""
        settings = [replace(study.settings, strategy=pair.strategy, codec=pair.codec) for pair in study.pairs]
        return {path for one in settings for path in import_paths(one)}

    def done(self, study: ConvergenceStudy, cells: Sequence[GridCell]) -> dict[GridCell, CellResult]:
        """Runs of exactly these settings that are kept here; a damaged file counts as none."""
        found = {cell: self._read_cell(self.cell(study, cell)) for cell in cells}
        return {cell: result for cell, result in found.items() if result is not None}

    def _read_cell(self, path: Path) -> CellResult | None:
        try:
            return from_document(read_sealed(path)["result"], CellResult)
        except (OSError, DamagedFile, KeyError, ValueError):
            return None

    def keep(self, study: ConvergenceStudy, result: CellResult) -> None:
        document = {"schema": SCHEMA, "settings": study.digest(result.cell), "result": to_document(result)}
        write_sealed(self.cell(study, result.cell), document)


def _plain(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", words).strip("-.")[-80:]


def _difference(one: ConvergenceStudy, two: ConvergenceStudy) -> str:
    """The first setting in which two studies differ."""
    was, now = _common(one), _common(two)
    for name, old in was.items():
        if old != now[name]:
            return f"{name.replace('_', ' ')} {old} there, {now[name]} here"
    return "the same in other words"


def _common(study: ConvergenceStudy) -> dict[str, Any]:
    settings = to_document(resolved(study.settings))
    varied = ("job", "strategy", "codec", "seed")
    others = {name: value for name, value in settings.items() if name not in varied}
    return {**settings["job"], **others, "cluster": str(study.cluster), "times": study.cluster.times}

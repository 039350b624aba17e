"""Checkpoints: one file for each worker or server and saved step, the last few kept."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.records.files import DamagedFile, from_document, listing, read_sealed, sync_folder, write_sealed
from paceline.records.folder import RunFolder
from paceline.records.tensors import (
    FileIdentity,
    FileRole,
    RunIdentity,
    check_tensors,
    read_tensors,
    write_tensors,
)


class Checkpoints:
    """The checkpoints of one run; every worker, or server, saves, loads and removes its own files."""

    def __init__(self, folder: RunFolder, identity: RunIdentity, keep: int, role: FileRole = "rank") -> None:
        assert keep >= 1
        self.folder, self.keep, self._identity = folder, keep, identity
        self.role: FileRole = role

    def save(self, step: int, rank: int, tree: Any) -> Path:
        """Write a worker's part of the checkpoint of a step; it is on the disk when this returns."""
        path, identity = self._file(step, rank)
        # No parents: a run folder that was deleted stays deleted.
        self.folder.checkpoints.mkdir(exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        try:
            write_tensors(path, tree, identity)
        except FileNotFoundError:
            # A worker that is ahead has pruned the folder while it was empty; it does so once.
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, tree, identity)
        sync_folder(self.folder.checkpoints)
        return path

    def load(self, step: int, rank: int) -> Any:
        return read_tensors(*self._file(step, rank))

    def is_whole(self, step: int, rank: int) -> bool:
        return not self._refusal(step, rank)

    def _refusal(self, step: int, rank: int) -> str:
        """Why this worker's part is not used; empty where it is unaltered and written by this run."""
        try:
            check_tensors(*self._file(step, rank))
        except DamagedFile as damage:
            return f"{damage}; this checkpoint is not used"
        except OSError as error:
            return f"{error.filename} cannot be read ({error.strerror}); this checkpoint is not used"
        return ""

    def valid_steps(self, rank: int) -> tuple[list[int], list[str]]:
        """The steps, newest first, whose file here is whole; and a sentence for each that is not."""
        found = {step: self._refusal(step, rank) for step in self._saved(rank)}
        return [step for step in found if not found[step]], [refusal for refusal in found.values() if refusal]

    def prune(self, rank: int, room: int = 0) -> None:
        """Remove this worker's files but the last ``keep``, what its crashes have left, and empty folders.

        Call it when all workers have saved the last one. A server does not know when the others have: it makes ``room``
        before it saves.
        """
        for folder in self._step_folders().values():
            for file in listing(folder, f".{self._file(0, rank)[0].name}.*.tmp"):
                file.unlink(missing_ok=True)
        for step in self._saved(rank)[max(1, self.keep - room) :]:
            _remove(self._file(step, rank)[0])

    def prune_gone(self, rank: int, members: Collection[int]) -> None:
        """Remove files of workers that have left, from before the first step that this worker keeps."""
        first = min(self._saved(rank), default=0)
        for step, folder in self._step_folders().items():
            for file in listing(folder, f"{self.role}-*.safetensors") if step < first else ():
                number = file.stem.removeprefix(f"{self.role}-")
                if number.isdecimal() and int(number) not in members:
                    _remove(file)

    def forget_after(self, step: int, rank: int) -> None:
        """Remove this worker's files beyond a step: a later crash could leave one with files of two different runs."""
        for newer in self._saved(rank):
            if newer > step:
                _remove(self._file(newer, rank)[0])

    def steps(self) -> list[int]:
        """The steps of which any file was saved here, newest first, whole or not."""
        return sorted(self._step_folders(), reverse=True)

    def whole_steps(self, ranks: Collection[int]) -> Iterator[int]:
        """The steps of which every one of these ranks' files is whole, newest first; verified as they are asked for."""
        for step in self.steps():
            # Whether a file exists is cheaper to know than whether it is whole.
            there = all(self.is_there(step, rank) for rank in ranks)
            if there and all(self.is_whole(step, rank) for rank in ranks):
                yield step

    def is_there(self, step: int, rank: int) -> bool:
        return self._file(step, rank)[0].exists()

    def _file(self, step: int, rank: int) -> tuple[Path, FileIdentity]:
        identity = FileIdentity(
            run=self._identity.run, settings=self._identity.settings, role=self.role, rank=rank, step=step
        )
        return self.folder.checkpoint(step, rank, self.role), identity

    def _step_folders(self) -> dict[int, Path]:
        numbers = {path.name.removeprefix("step-"): path for path in self.folder.checkpoints.glob("step-*")}
        return {int(number): path for number, path in numbers.items() if number.isdecimal()}

    def _saved(self, rank: int) -> list[int]:
        return [step for step in self.steps() if self.is_there(step, rank)]


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    with suppress(OSError):  # another worker's file is in it, or another worker has just removed it
        file.parent.rmdir()


_KEPT = 64


class Commits:
    """``checkpoints/complete-N.json``: the steps that all had saved, as the first worker of node N learned it.

    One process of a node writes it. A record that is damaged, or of another run, names no step.
    """

    def __init__(self, folder: RunFolder, identity: RunIdentity, node: int) -> None:
        self._path, self._run = folder.commits(node), identity.run

    def steps(self) -> list[int]:
        try:
            document = read_sealed(self._path)
            steps = from_document(document.get("steps"), list[int])
        except (DamagedFile, OSError, ValueError):
            return []
        return sorted(steps) if document.get("run") == self._run else []

    def add(self, step: int) -> None:
        self._write({*self.steps(), step})

    def forget_after(self, step: int) -> None:
        known = self.steps()
        if any(one > step for one in known):
            self._write({one for one in known if one <= step})

    def _write(self, steps: set[int]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        write_sealed(self._path, {"run": self._run, "steps": sorted(steps)[-_KEPT:]})

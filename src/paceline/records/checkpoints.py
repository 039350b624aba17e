"""Checkpoints: one file a worker or server and saved step, the last few kept."""

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.records.files import DamagedFile, leftovers, listing, sync_folder
from paceline.records.folder import RunFolder
from paceline.records.tensorfile import Tree, check_tensors, read_tensors, write_tensors


class Newest(NamedTuple):
    """The last checkpoint, for people who ask what is safe."""

    step: int
    age: float
    """Seconds since it was written."""
    path: Path
    """Its folder."""


class Checkpoints:
    """The checkpoints of one run; every worker, or server, saves, loads and removes its own files only."""

    def __init__(self, folder: RunFolder, keep: int, role: Literal["rank", "server"] = "rank") -> None:
        assert keep >= 1
        self.folder = folder
        self.keep = keep
        self.role = role

    def save(self, step: int, rank: int, tree: Tree) -> Path:
        """Write a worker's part of the checkpoint of a step; it is on the disk when this returns."""
        path = self._path(step, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_tensors(path, tree)
        except FileNotFoundError:
            # A worker that is ahead has pruned the folder while it was empty; it does so once.
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tree)
        sync_folder(path.parent.parent)
        return path

    def load(self, step: int, rank: int) -> Tree:
        """Read a worker's part back, or raise DamagedFile."""
        return read_tensors(self._path(step, rank))

    def valid_steps(self, rank: int) -> tuple[list[int], list[str]]:
        """The steps, newest first, whose file here is whole; and a sentence for each that is not."""
        whole, refused = [], []
        for step in self._steps(rank):
            try:
                check_tensors(self._path(step, rank))
                whole.append(step)
            except DamagedFile as damage:
                refused.append(f"{damage}; this checkpoint is not used")
            except OSError as error:
                refused.append(
                    f"{error.filename} cannot be read ({error.strerror}); this checkpoint is not used"
                )
        return whole, refused

    def prune(self, rank: int) -> None:
        """Remove this worker's files but the last ``keep``, what its crashes have left, and empty folders.

        Where only one is kept, the one before it stays for as long as some worker has no newer one, so that
        there is always a step which all workers can go back to.
        """
        steps = self._steps(rank)
        surplus = steps[self.keep :]
        if self.keep == 1 and surplus and not self._ranks(surplus[0]) <= self._ranks(steps[0]):
            surplus = surplus[1:]
        for step in surplus:
            self._path(step, rank).unlink(missing_ok=True)
        for folder in self._step_folders().values():
            for file in leftovers(folder, self._path(0, rank).name):
                file.unlink(missing_ok=True)
        for step in surplus:
            _remove_if_empty(self._path(step, rank).parent)

    def forget_after(self, step: int, rank: int) -> None:
        """Remove this worker's files beyond a step, whole or not, for a run that goes on from there.

        A later crash could otherwise leave a step whose files are of two different runs.
        """
        for newer in self._steps(rank):
            if newer > step:
                path = self._path(newer, rank)
                path.unlink(missing_ok=True)
                _remove_if_empty(path.parent)

    def newest(self, ranks: Collection[int] = ()) -> Newest | None:
        """The last step that these workers have saved, or all that ever saved here; no file is opened.

        Where servers keep the parameters, theirs decide: workers may leave and die.
        """
        if self.role == "rank" and (kept := Checkpoints(self.folder, self.keep, "server").newest()):
            return kept
        saved = {step: self._ranks(step) for step in self._step_folders()}
        needed = set(ranks) or set().union(*saved.values())
        for step in sorted(saved, reverse=True):
            if needed and needed <= saved[step]:
                path = self._path(step, 0).parent
                return Newest(step, max(0.0, time.time() - path.stat().st_mtime), path)
        return None

    def _path(self, step: int, rank: int) -> Path:
        return self.folder.checkpoint(step, rank, self.role)

    def _step_folders(self) -> dict[int, Path]:
        return {
            int(path.name.removeprefix("step-")): path
            for path in self.folder.checkpoints.glob("step-*")
            if path.name.removeprefix("step-").isdecimal()
        }

    def _steps(self, rank: int) -> list[int]:
        """The steps that this worker has saved, newest first, whole or not."""
        steps = (step for step in self._step_folders() if self._path(step, rank).exists())
        return sorted(steps, reverse=True)

    def _ranks(self, step: int) -> set[int]:
        names = (
            path.stem.removeprefix(f"{self.role}-")
            for path in listing(self._path(step, 0).parent, f"{self.role}-*.tensors")
        )
        return {int(name) for name in names if name.isdecimal()}


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another worker's file is in it, or another worker has just removed it
        folder.rmdir()

"""Checkpoints: one file a worker or server and saved step, the last few kept."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from paceline.records.files import DamagedFile, leftovers, listing, read_sealed, sync_folder, write_sealed
from paceline.records.folder import RunFolder
from paceline.records.tensors import (
    FileIdentity,
    Role,
    RunIdentity,
    Tree,
    check_tensors,
    read_tensors,
    write_tensors,
)


class Checkpoints:
    """The checkpoints of one run; every worker, or server, saves, loads and removes its own files.

    Of workers that have gone, others remove what is not kept any more.
    """

    def __init__(self, folder: RunFolder, identity: RunIdentity, keep: int, role: Role = "rank") -> None:
        assert keep >= 1
        self.folder = folder
        self.keep = keep
        self.role: Role = role
        self._identity = identity

    def save(self, step: int, rank: int, tree: Tree) -> Path:
        """Write a worker's part of the checkpoint of a step; it is on the disk when this returns."""
        path, identity = self._path(step, rank), self._of(step, rank)
        self.folder.checkpoints.mkdir(exist_ok=True)  # and no more: a run folder that is gone stays gone
        path.parent.mkdir(exist_ok=True)
        try:
            write_tensors(path, tree, identity)
        except FileNotFoundError:
            # A worker that is ahead has pruned the folder while it was empty; it does so once.
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, tree, identity)
        sync_folder(path.parent.parent)
        return path

    def load(self, step: int, rank: int) -> Tree:
        return read_tensors(self._path(step, rank), self._of(step, rank))

    def is_whole(self, step: int, rank: int) -> bool:
        """Whether this worker's part is there, unaltered and this run's own."""
        try:
            check_tensors(self._path(step, rank), self._of(step, rank))
        except (DamagedFile, OSError):
            return False
        return True

    def valid_steps(self, rank: int) -> tuple[list[int], list[str]]:
        """The steps, newest first, whose file here is whole; and a sentence for each that is not."""
        whole, refused = [], []
        for step in self._steps(rank):
            try:
                check_tensors(self._path(step, rank), self._of(step, rank))
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

        Call it when all workers have the last one, so that there is always a step which all can go back to.
        """
        self._keep_last(rank, self.keep)

    def prune_gone(self, rank: int, members: Collection[int]) -> None:
        """Remove files of workers that are not there any more, from before the first step that this worker keeps."""
        first = min(self._steps(rank), default=0)
        for step, folder in self._step_folders().items():
            for file in listing(folder, f"{self.role}-*.safetensors") if step < first else ():
                number = file.stem.removeprefix(f"{self.role}-")
                if number.isdecimal() and int(number) not in members:
                    file.unlink(missing_ok=True)
                    _remove_if_empty(folder)

    def make_room(self, rank: int) -> None:
        """Prune before a file is written: for those who do not know when all others have written theirs."""
        self._keep_last(rank, max(1, self.keep - 1))

    def _keep_last(self, rank: int, count: int) -> None:
        surplus = self._steps(rank)[count:]
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

    def steps(self) -> list[int]:
        """The steps of which anything was saved here, newest first, whole or not."""
        return sorted(self._step_folders(), reverse=True)

    def is_there(self, step: int, rank: int) -> bool:
        return self._path(step, rank).exists()

    def _of(self, step: int, rank: int) -> FileIdentity:
        return self._identity.of(self.role, rank, step)

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


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another worker's file is in it, or another worker has just removed it
        folder.rmdir()


_KEPT = 64
"""Steps that a record names, the newest; many more than checkpoints that are kept."""


class Commits:
    """``checkpoints/complete-N.json``: the steps that all had saved, as the first worker of node N learned it.

    One process of a node writes it. A record that is damaged, or of another run, names no step.
    """

    def __init__(self, folder: RunFolder, identity: RunIdentity, node: int) -> None:
        self._path, self._run = folder.commits(node), identity.run

    def steps(self) -> list[int]:
        try:
            document = read_sealed(self._path)
        except (DamagedFile, OSError):
            return []
        steps = document.get("steps")
        if document.get("run") != self._run or not isinstance(steps, list):
            return []
        return sorted(step for step in steps if type(step) is int)

    def add(self, step: int) -> None:
        self._write({*self.steps(), step})

    def forget_after(self, step: int) -> None:
        """The run goes on from a step: what comes after it is to be saved anew."""
        known = self.steps()
        if any(one > step for one in known):
            self._write({one for one in known if one <= step})

    def _write(self, steps: set[int]) -> None:
        write_sealed(self._path, {"run": self._run, "steps": sorted(steps)[-_KEPT:]})

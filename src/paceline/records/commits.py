"""Which checkpoints every worker and server has written: what one host knows of the others' files."""

from paceline.records.files import DamagedFile, read_sealed, write_sealed
from paceline.records.folder import RunFolder
from paceline.records.identity import RunIdentity

_KEPT = 64
"""Steps that a record names, the newest; many more than checkpoints that are kept."""


class Commits:
    """``checkpoints/complete-N.json``: the steps that all had saved, as the first worker of node N learned it.

    One process of a node writes it. A record that is damaged, or of another run, names no step.
    """

    def __init__(self, folder: RunFolder, identity: RunIdentity, node: int) -> None:
        self._path, self._run = folder.commits(node), identity.run

    def steps(self) -> list[int]:
        """The steps, in order."""
        try:
            document = read_sealed(self._path)
        except (DamagedFile, OSError):
            return []
        steps = document.get("steps")
        if document.get("run") != self._run or not isinstance(steps, list):
            return []
        return sorted(step for step in steps if type(step) is int)

    def add(self, step: int) -> None:
        """Every worker and server has saved this step."""
        self._write({*self.steps(), step})

    def forget_after(self, step: int) -> None:
        """The run goes on from a step: what comes after it is to be saved anew."""
        known = self.steps()
        if any(one > step for one in known):
            self._write({one for one in known if one <= step})

    def _write(self, steps: set[int]) -> None:
        write_sealed(self._path, {"run": self._run, "steps": sorted(steps)[-_KEPT:]})

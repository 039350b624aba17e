"""Which run a file belongs to: a run's id, and what its checkpoints say of themselves."""

import re
import secrets
from dataclasses import dataclass
from typing import Literal

Role = Literal["rank", "server"]

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What all files of a run share."""

    run: str
    """Drawn at random when the run began, 16 hexadecimal digits."""
    settings: str
    """SHA-256 of the settings that may not change when the run resumes."""

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run):
            raise ValueError(f"{self.run!r} is not the id of a run")
        if not _DIGEST.fullmatch(self.settings):
            raise ValueError(f"{self.settings!r} is not a digest")

    def of(self, role: Role, rank: int, step: int) -> "FileIdentity":
        """The identity of one checkpoint file."""
        return FileIdentity(run=self.run, settings=self.settings, role=role, rank=rank, step=step)


@dataclass(frozen=True, kw_only=True)
class FileIdentity(RunIdentity):
    """Whose state of which step a checkpoint file holds."""

    role: Role
    rank: int
    step: int

    def __str__(self) -> str:
        return f"run {self.run}, {self.role} {self.rank}, step {self.step}"


def new_run_id() -> str:
    """One that no other run has."""
    return secrets.token_hex(8)

"""What went wrong in a worker, as a note that its launcher reads, and which of several notes is the cause."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self

import torch

from paceline.runtimes.live.process_info import Role, file_stem
from paceline.runtimes.live.worker.server_client import ServerLost
from paceline.shm import PeerLost

Kind = Literal[
    "killed",
    "exited",
    "error",
    "mistake",
    "lost-host",
    "lost-peer",
    "stopped",
    "interrupted",
    "check",
    "abandoned",
    "hung",
    "expelled",
    "diverged",
]

_CAUSES: tuple[Kind, ...] = ("killed", "exited", "error", "mistake", "hung", "diverged")
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo/transport",
    "application timeout caused pair closure",
    "remote peer",
    "ncclremoteerror",
    "socket timeout",
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One worker's or server's end before its time.

    "killed" and "exited" left no note of their own. "error" is an exception, "mistake" one that the user can
    fix, "lost-peer" a collective that failed because somebody else had gone, "lost-host" a launcher that does
    not answer. "stopped" ended hard after a signal, "interrupted" stopped in agreement with all others;
    "check" ended well, with a result that failed its check; "abandoned" is a server whose workers have all died.
    "hung" stood still and was ended by its launcher, "expelled" was given up by the servers after a long silence.
    "diverged" found a loss or a parameter that is not finite.
    """

    rank: int
    role: Role = "worker"
    host: str
    kind: Kind
    step: int = 0
    """Steps finished; of a server, updates."""
    message: str = ""
    where: str = ""
    """The last line of the user's own code, "my_job.py:42 in loss"."""
    traceback: str = ""
    run: str | None = None
    """The run folder, where it was known."""
    at: float = field(default_factory=time.time)

    def to_json(self) -> str:
        """The note as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(text))

    def write(self, launch: Path) -> None:
        """Leave the note for the launcher; a worker's first note stands."""
        path = note_path(launch, self.rank, self.role)
        draft = path.with_suffix(".draft")
        draft.write_text(self.to_json())
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def note_path(launch: Path, rank: int, role: Role = "worker") -> Path:
    """The failure note of a worker or server."""
    return launch / f"{file_stem(rank, role)}.failure.json"


def read_note(launch: Path, rank: int, role: Role = "worker") -> Failure | None:
    """A worker's or server's note, or None where it left none."""
    try:
        return Failure.from_json(note_path(launch, rank, role).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def root_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that the others follow from: the first that has a cause of its own.

    A worker that lost a peer, or was told to stop, never is the cause while another failure is known.
    """
    return min(failures, key=lambda failure: (_rank_of(failure.kind), failure.at))


def _rank_of(kind: Kind) -> int:
    return 0 if kind in _CAUSES else 1 if kind in ("lost-peer", "lost-host") else 2


def lost_peer(error: BaseException) -> bool:
    """Whether an exception means that somebody else has gone, and not that something is wrong here."""
    if isinstance(
        error,
        PeerLost | ServerLost | torch.distributed.DistNetworkError | torch.distributed.DistStoreError,
    ):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ConnectionError) and any(sign in text for sign in _LOST_PEER)

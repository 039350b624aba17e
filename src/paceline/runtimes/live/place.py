"""Where a worker stands: its rank, its host and who launched it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from paceline.errors import Mistake

FOLDER = "PACELINE_LAUNCH"
"""The variable that names the launch folder; set for the workers that ``launch`` starts."""

LAUNCHER = "PACELINE_LAUNCHER"
"""The variable that holds the launcher's process id."""

_NEEDED = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """One worker's place among all workers, as its launcher told it."""

    rank: int = 0
    workers: int = 1
    local_rank: int = 0
    local_workers: int = 1
    """Workers on this host, as far as the launcher said."""
    node_rank: int = 0
    nodes: int = 1
    host: str = ""
    address: str = "127.0.0.1"
    """Where the workers meet first."""
    port: int = 0
    launch: Path | None = None
    """The launch folder, for heartbeats and failure notes; None where paceline is not the launcher."""
    launcher: int | None = None
    """The launcher's process id, where paceline is the launcher."""

    def __post_init__(self) -> None:
        for value, name, size, of in (
            (self.rank, "RANK", self.workers, "WORLD_SIZE"),
            (self.local_rank, "LOCAL_RANK", self.local_workers, "LOCAL_WORLD_SIZE"),
            (self.node_rank, "GROUP_RANK", self.nodes, "GROUP_WORLD_SIZE"),
        ):
            if not 0 <= value < size:
                raise Mistake(
                    f"{name}={value} lies outside {of}={size}: the launcher must count ranks from 0"
                )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Read what torchrun, or anything with its variables, says; None where nobody launched us."""
        if "RANK" not in environ:
            return None
        if missing := [name for name in _NEEDED if not environ.get(name)]:
            raise Mistake(
                f"RANK is set and {missing[0]} is not: "
                "start workers with 'paceline train' or torchrun, or unset RANK"
            )
        rank, workers = _count(environ, "RANK"), _count(environ, "WORLD_SIZE")
        local_rank = _count(environ, "LOCAL_RANK", 0)
        local_workers = _count(environ, "LOCAL_WORLD_SIZE", local_rank + 1)
        node_rank = _count(environ, "GROUP_RANK", rank // max(local_workers, 1))
        folder = environ.get(FOLDER)
        return cls(
            rank=rank,
            workers=workers,
            local_rank=local_rank,
            local_workers=local_workers,
            node_rank=node_rank,
            nodes=_count(environ, "GROUP_WORLD_SIZE", max(node_rank + 1, workers // max(local_workers, 1))),
            host=host_name(),
            address=environ["MASTER_ADDR"],
            port=_count(environ, "MASTER_PORT"),
            launch=Path(folder) if folder else None,
            launcher=_count(environ, LAUNCHER) if LAUNCHER in environ else None,
        )


def host_name() -> str:
    """What this host calls itself."""
    return socket.gethostname()


def _count(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise Mistake(f"{name}={text} is not a number: the launcher must set it to a whole number from 0")
    return int(text)

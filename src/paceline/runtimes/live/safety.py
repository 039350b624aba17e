"""What is safe when a run has ended early: the newest checkpoint that is whole on every worker and server."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Self

from paceline.errors import Mistake
from paceline.records.checkpoints import Checkpoints
from paceline.records.commits import Commits
from paceline.records.folder import RunFolder
from paceline.runtimes.config import Config, read_live
from paceline.units import show_seconds


@dataclass(frozen=True, kw_only=True)
class CompleteSteps:
    """What one host can say of a run's checkpoints, newest first."""

    whole: tuple[int, ...] = ()
    """Steps of which every file that belongs on this host is verified: unaltered, and this run's own."""
    complete: tuple[int, ...] = ()
    """Those of them that every other host has written too, as far as this host has seen or recorded it."""

    def to_json(self) -> dict[str, Any]:
        """For the launcher of another host."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; whatever is no step is left out."""
        return cls(**{name: tuple(_steps_in(document.get(name))) for name in ("whole", "complete")})


def _steps_in(value: Any) -> list[int]:
    found = value if isinstance(value, list | tuple) else []
    return [step for step in found if type(step) is int and step >= 0]


def complete_steps(run: Path) -> CompleteSteps:
    """Verify the checkpoints in this host's run folder; nothing is changed. A Mistake says why nobody can resume it.

    The files of other hosts are not here unless the hosts share a file system. Where they are not, the record that
    all workers had saved a step stands for them.
    """
    folder = RunFolder(run)
    config = read_live(folder)
    nodes = sorted({*config.placement.workers, *config.placement.servers})
    here = [node for node in nodes if node in folder.lock_nodes()]
    committed = {step for node in here for step in Commits(folder, config.identity, node).steps()}
    steps = Checkpoints(folder, config.identity, 1).steps()
    whole = [step for step in steps if _is_whole(folder, config, here, step)]
    all_here = here == nodes
    return CompleteSteps(
        whole=tuple(whole), complete=tuple(step for step in whole if all_here or step in committed)
    )


def known_steps(run: Path) -> CompleteSteps:
    """The same for other hosts to know; none where nothing here can be resumed."""
    try:
        return complete_steps(run)
    except Mistake:
        return CompleteSteps()


def _is_whole(folder: RunFolder, config: Config, nodes: Sequence[int], step: int) -> bool:
    """Whether all files of a step that a run resumes from are whole, of the workers and servers on these nodes.

    Where servers keep the parameters, theirs decide: each writes its own when the workers have written theirs, and
    workers may come and go.
    """
    placement = config.placement
    role: Any = "server" if placement.servers else "rank"
    files = Checkpoints(folder, config.identity, 1, role)
    ranks = [rank for rank, node in enumerate(placement.servers or placement.workers) if node in nodes]
    # Whether a file is there is cheaper to know than whether it is whole.
    return (
        bool(nodes)
        and all(files.is_there(step, rank) for rank in ranks)
        and all(files.is_whole(step, rank) for rank in ranks)
    )


def newest_safe(hosts: Sequence[CompleteSteps], nodes: int) -> int | None:
    """The newest step that a run of so many nodes resumes from, as these hosts know it; the same on all of them.

    Where every host has told what is whole there, that is enough; else what those who have told know of the others.
    """
    told_all = len(hosts) >= nodes
    known = [set(host.whole if told_all else host.complete) for host in hosts]
    shared = set.intersection(*known) if known else set()
    return max(shared, default=None)


def safe(run: Path, options: str = "", others: Sequence[CompleteSteps] = ()) -> list[str]:
    """The newest checkpoint that is safe and the command that goes on from it.

    ``options`` are what the command needs besides the run folder, ``others`` what other hosts have told.
    """
    if not run.exists():
        return [f"Safe: nothing, {short(run)} is gone; start again with the same command."]
    try:
        step = newest_safe([complete_steps(run), *others], _nodes(run))
    except Mistake as mistake:
        return [f"Safe: nothing that can be resumed: {mistake}."]
    if step is None:
        return ["Safe: no checkpoint yet; start again with the same command."]
    return [
        f"Safe: checkpoint of step {step}, {show_seconds(_age(run, step))} old.",
        f"Resume: paceline train --resume {quote(short(run))}{options}",
    ]


def _nodes(run: Path) -> int:
    placement = read_live(RunFolder(run)).placement
    return len({*placement.workers, *placement.servers})


def _age(run: Path, step: int) -> float:
    """Seconds since the last file of a step was written here."""
    return max(0.0, time.time() - RunFolder(run).checkpoint(step, 0).parent.stat().st_mtime)


def short(path: Path) -> str:
    """The path as a person at this folder would write it."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near

"""What is safe when a run has ended early: the newest checkpoint that is whole on every worker and server."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.folder import RunFolder
from paceline.records.tensors import Role
from paceline.runtimes.config import Config, read_live
from paceline.runtimes.live.failures import command, short
from paceline.units import show_seconds

_Steps = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


@dataclass(frozen=True, kw_only=True)
class CompleteSteps:
    """What one host can say of a run's checkpoints, newest first."""

    whole: _Steps = ()
    """Steps whose files that belong on this host are verified; of a run on one node the newest only."""
    complete: _Steps = ()
    """Those of them that every other host has written too, where this host has seen or recorded it."""

    @classmethod
    def from_json(cls, text: bytes) -> "CompleteSteps":
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls()


def complete_steps(run: Path) -> CompleteSteps:
    """Verify the checkpoints in this host's run folder; a UsageError says why it cannot be resumed.

    The record that all workers had saved a step stands for files that are on other hosts.
    """
    folder = RunFolder(run)
    config = read_live(folder)
    here = _nodes_here(folder, config)
    committed = {step for node in here for step in Commits(folder, config.identity, node).steps()}
    steps = Checkpoints(folder, config.identity, 1).steps()
    verified = (step for step in steps if _is_whole(folder, config, here, step))
    whole = tuple(islice(verified, 1 if _nodes(config) == 1 else None))
    all_here = here.issuperset(config.placement.servers or config.placement.workers)
    return CompleteSteps(whole=whole, complete=tuple(step for step in whole if all_here or step in committed))


def _nodes_here(folder: RunFolder, config: Config) -> set[int]:
    """The nodes of whose servers, else workers, this folder holds a record or a checkpoint; a lock is no sign."""

    def nodes(role: Role, placed: Sequence[int]) -> set[int]:
        recorded = folder.server_event_files() if role == "server" else folder.event_files()
        saved = {path.name for path in folder.checkpoints.glob(f"step-*/{role}-*.safetensors")}
        return {
            node
            for rank, node in enumerate(placed)
            if rank in recorded or folder.checkpoint(0, rank, role).name in saved
        }

    placement = config.placement
    serving = nodes("server", placement.servers)
    return serving | (nodes("rank", placement.workers) - set(placement.servers))


def _is_whole(folder: RunFolder, config: Config, nodes: Collection[int], step: int) -> bool:
    """Where servers keep the parameters, their files decide: each writes its own after the workers, which may go."""
    placement = config.placement
    files = Checkpoints(folder, config.identity, 1, "server" if placement.servers else "rank")
    ranks = [rank for rank, node in enumerate(placement.servers or placement.workers) if node in nodes]
    # Whether a file exists is cheaper to know than whether it is whole.
    there = bool(nodes) and all(files.is_there(step, rank) for rank in ranks)
    return there and all(files.is_whole(step, rank) for rank in ranks)


def newest_safe(hosts: Sequence[CompleteSteps], nodes: int) -> int | None:
    """The newest step that a run of so many nodes resumes from, as these hosts know it."""
    known = [set(host.whole if len(hosts) >= nodes else host.complete) for host in hosts]
    return max(set.intersection(*known) if known else (), default=None)


Ask = Callable[[CompleteSteps], Sequence[CompleteSteps]]
"""Tells other hosts what this one knows of the checkpoints, and returns what they know."""


def safe(run: Path, settings: Mapping[str, Any] | None = None, ask: Ask = lambda _: ()) -> list[str]:
    """The newest checkpoint that is safe and the command that goes on from it, with these settings.

    Other hosts are asked once, in every case.
    """
    try:
        nodes, mine = _nodes(read_live(RunFolder(run))), complete_steps(run)
    except UsageError as mistake:
        ask(CompleteSteps())
        if not run.exists():
            return [f"Safe: nothing, {short(run)} is gone; start again with the same command."]
        return [f"Safe: nothing that can be resumed: {mistake}."]
    step = newest_safe([mine, *ask(mine)], nodes)
    if step is None:
        return ["Safe: no checkpoint yet; start again with the same command."]
    written = RunFolder(run).checkpoint(step, 0).parent.stat().st_mtime
    return [
        f"Safe: checkpoint of step {step}, {show_seconds(max(0.0, time.time() - written))} old.",
        f"Resume: {command('train', resume=short(run), **(settings or {}))}",
    ]


def _nodes(config: Config) -> int:
    return len({*config.placement.workers, *config.placement.servers})

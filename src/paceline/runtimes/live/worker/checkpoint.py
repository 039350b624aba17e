"""What a checkpoint of one worker holds, and how all workers find the newest one that they share."""

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunFolder
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.drift import equal_when_saved
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Position
from paceline.strategies.base import Worker


def snapshot(replica: Replica, me: Worker, position: Position, target: float | None) -> dict[str, Any]:
    """Everything that ``restore`` needs; tensors and numbers only."""
    on_gpu = replica.device.type == "cuda"
    return {
        "replica": replica.state(),
        "gpu_rng": torch.cuda.get_rng_state(replica.device) if on_gpu else None,
        "state": dict(me.state),
        "worker": {name: getattr(me, name) for name in _NUMBERS},
        "position": asdict(position),
        "target": target,
    }


_NUMBERS = ("clock", "now", "samples", "samples_since_sync", "total_weight")


def restore(
    tree: dict[str, Any], replica: Replica, me: Worker, position: Position, target: float | None
) -> None:
    """Make the worker what it was. Under another target, that the old one was reached is forgotten."""
    replica.load(tree["replica"])
    if tree["gpu_rng"] is not None:
        torch.cuda.set_rng_state(tree["gpu_rng"], replica.device)
    me.state.update({name: tensor.to(replica.device) for name, tensor in tree["state"].items()})
    for name in _NUMBERS:
        setattr(me, name, tree["worker"][name])
    for field in fields(Position):
        setattr(position, field.name, tree["position"][field.name])
    if tree["target"] != target:
        position.reached = None


def shared_steps(checkpoints: Checkpoints, group: Group, note: Callable[[str], None]) -> list[int]:
    """The steps, newest first, whose checkpoint is whole on every worker; files that are not are named."""
    whole, refused = checkpoints.valid_steps(group.rank)
    found = group.exchange({"whole": whole, "refused": refused})
    for sentence in (sentence for other in found for sentence in other["refused"]):
        note(sentence)
    shared: set[int] = set.intersection(*(set(other["whole"]) for other in found))
    return sorted(shared, reverse=True)


def load_shared(
    folder: RunFolder,
    checkpoints: Checkpoints,
    group: Group,
    note: Callable[[str], None],
    *,
    replicated: bool,
) -> tuple[int, dict[str, Any]]:
    """The newest step that all workers have, and this worker's part; ``replicated`` parameters must be equal on all."""
    for step in shared_steps(checkpoints, group, note):
        tree: dict[str, Any] = checkpoints.load(step, group.rank)
        if not replicated or equal_when_saved(group, tree["replica"]["params"], step, note):
            return step, tree
    raise UsageError(
        f"{folder.path} holds no checkpoint that is whole on all {group.workers} workers; start the run anew"
    )

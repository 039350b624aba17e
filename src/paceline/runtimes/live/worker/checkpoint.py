"""What a checkpoint of one worker holds, and how all workers find the newest one that they share."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunFolder
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.drift import equal_when_saved
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Position
from paceline.strategies.base import Worker

_NUMBERS = ("clock", "now", "samples", "samples_since_sync", "total_weight")


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


def restore(
    tree: dict[str, Any], replica: Replica, me: Worker, position: Position, target: float | None
) -> None:
    """Set the worker to what it was. Under another target, it is forgotten when the old one was reached."""
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


Loaded = tuple[int, dict[str, Any] | None]
"""The step that a run resumes from, and this worker's tree; None where it has none of that step."""


def load_shared(
    folder: RunFolder,
    checkpoints: Checkpoints,
    comm: SoloComm,
    note: Callable[[str], None],
    prepared: Prepared,
) -> Loaded:
    """From the newest checkpoint that is whole on all workers, and equal on all where the strategy keeps replicas."""
    whole, refused = checkpoints.valid_steps(comm.rank)
    for step in _shared_steps(comm.exchange({"whole": whole, "refused": refused}), note):
        tree: dict[str, Any] = checkpoints.load(step, comm.rank)
        if not prepared.strategy.replicated or equal_when_saved(comm, tree["replica"]["params"], step, note):
            return step, tree
    raise _no_shared_step(folder, comm.workers, "workers")


def load_with_servers(
    folder: RunFolder,
    checkpoints: Checkpoints,
    comm: SoloComm,
    note: Callable[[str], None],
    prepared: Prepared,
) -> Loaded:
    """From the newest checkpoint that is whole on all servers: a worker need not have one of that step."""
    assert isinstance(comm, ServerComm)
    steps = _shared_steps(comm.servers(prepared.servers), note)
    if not steps:
        raise _no_shared_step(folder, prepared.servers, "servers")
    whole, refused = checkpoints.valid_steps(comm.rank)
    for sentence in refused:
        note(sentence)
    return steps[0], checkpoints.load(steps[0], comm.rank) if steps[0] in whole else None


def _shared_steps(found: Sequence[dict[str, Any]], note: Callable[[str], None]) -> list[int]:
    """The steps, newest first, whose checkpoint is whole on every process; ``found`` is what each has."""
    for sentence in (sentence for one in found for sentence in one["refused"]):
        note(sentence)
    shared: set[int] = set.intersection(*(set(one["whole"]) for one in found))
    return sorted(shared, reverse=True)


def _no_shared_step(folder: RunFolder, count: int, who: str) -> UsageError:
    return UsageError(
        f"{folder.path} holds no checkpoint that is whole on all {count} {who}; start the run anew"
    )

"""What a script saves of its worker: all that changes while training and is neither the model's nor the optimizer's."""

import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.loop.replica import LoopReplica, LoopRun
from paceline.runtimes.randomness import AllStreams
from paceline.runtimes.session import Position

NUMBERS = ("clock", "samples_since_sync", "total_weight")
"""Of a worker, beside the strategy's own state."""
STREAMS = AllStreams()
"""A script may draw from any of them, as data sets that augment do."""


def saved_state(
    strategy: str,
    replica: LoopReplica,
    run: LoopRun | None,
    orders: Sequence[torch.Generator],
    loaded: dict[str, Any],
) -> dict[str, Any]:
    """As one value, whose length is known to no one before: ``torch.distributed.checkpoint`` loads into what is there.

    ``orders`` are the generators of the orders in which samples are dealt. Before the first step, what was ``loaded``
    is still what there is.
    """
    content: dict[str, Any] = {
        **loaded,
        "rank": replica.rank,
        "workers": replica.workers,
        "random": STREAMS.get(),
        "orders": [one.get_state() for one in orders],
    }
    if replica.device.type == "cuda":
        content["cuda"] = torch.cuda.get_rng_state(replica.device)
    if len(replica.learners) > 1:
        content["params"], content["buffers"] = replica.flat.params.clone(), replica.named_buffers.named
    if run is not None:
        content["numbers"] = {name: getattr(run.me, name) for name in NUMBERS}
        content["state"] = dict(run.me.state)
        content["position"] = asdict(run.position)
    file = io.BytesIO()
    torch.save(content, file)
    return {"strategy": strategy, "content": file.getvalue()}


def read_state(
    saved: dict[str, Any], strategy: str, replica: LoopReplica, orders: Sequence[torch.Generator]
) -> dict[str, Any]:
    """Check a saved state and take over what there is before the first step; return the rest for ``begin_at``."""
    if saved["strategy"] != strategy:
        raise UsageError(
            f"the state is of strategy {saved['strategy']!r}, and this run has {strategy!r}; use the same, or leave "
            "the state out"
        )
    content: dict[str, Any] = torch.load(io.BytesIO(saved["content"]), weights_only=True)
    if content["workers"] != replica.workers:
        raise UsageError(
            f"the state is of a run of {content['workers']} workers, and this one has {replica.workers}; use as many, "
            "or leave the state out: the model and the optimizer's state go on alone"
        )
    if content["rank"] != replica.rank:
        raise UsageError(
            f"the state is rank {content['rank']}'s, and this is rank {replica.rank}; save each worker's under a name "
            "of its own, such as f'worker-{worker.rank}'"
        )
    if len(content["orders"]) != len(orders):
        raise UsageError(
            f"the state has the orders of {len(content['orders'])} loaders, and {len(orders)} were sharded here; call "
            "worker.shard() for the same loaders as before, and then load_state_dict()"
        )
    for one, order in zip(orders, content["orders"], strict=True):
        one.set_state(order)
    STREAMS.set(content["random"])
    if "cuda" in content:
        torch.cuda.set_rng_state(content["cuda"], replica.device)
    if "params" in content:
        with torch.no_grad():
            replica.flat.params.copy_(content["params"])
            for name, value in replica.named_buffers.named.items():
                value.copy_(content["buffers"][name])
    return content if "numbers" in content else {}


def begin_at(content: dict[str, Any], run: LoopRun) -> None:
    """Go on where the saved worker was."""
    if not content:
        return
    for name in NUMBERS:
        setattr(run.me, name, content["numbers"][name])
    run.me.state.update({name: one.to(run.replica.device) for name, one in content["state"].items()})
    run.position = Position(**content["position"])

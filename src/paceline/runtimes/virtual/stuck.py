"""Why a simulated run cannot go on: who waits for what."""

from collections.abc import Sequence
from typing import Any

from paceline.runtimes.virtual.node import Node
from paceline.strategies.effects import AllReduce, Broadcast, Gradient, Receive
from paceline.units import show_seconds

SHOWN = 8
"""Workers that are named before the rest are only counted."""


def explain(workers: Sequence[Node]) -> str:
    """One sentence about a run in which everybody waits."""
    waiting = [worker for worker in workers if not worker.gone]
    parts = [_one(worker) for worker in waiting[:SHOWN]]
    if len(waiting) > SHOWN:
        parts.append(f"and {len(waiting) - SHOWN} more wait")
    if gone := [str(worker) for worker in workers if worker.gone]:
        more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
        parts.append(f"{', '.join(gone[:SHOWN])}{more} left before")
    return f"the run cannot go on, everybody waits: {'; '.join(parts)}"


def _one(worker: Node) -> str:
    since = show_seconds(worker.me.now)
    return f"{worker} waits for {describe(worker.waits_for)} since {since}, at step {worker.me.clock}"


def describe(effect: Any) -> str:
    """What a node waits for, in a few words."""
    match effect:
        case AllReduce():
            return f"the others in an all-reduce of {effect.tensor.nbytes} bytes"
        case Broadcast():
            return f"the others in a broadcast of {effect.tensor.nbytes} bytes from worker {effect.root}"
        case Gradient():
            return "the others' gradients"
        case Receive():
            return "a message"
    return type(effect).__name__

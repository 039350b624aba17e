"""What prediction must know of a strategy, observed by running its programs without a network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from paceline.errors import UsageError
from paceline.strategies.base import ENDS, Server, Strategy, Worker, wrong_effect
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    Clock,
    Gradient,
    Peer,
    Program,
    Receive,
    Send,
)
from paceline.strategies.messages import Join, Push

FIRST = 32
LONGEST = 2**18

StepExchanges = tuple[tuple[str, int], ...]
"""What a worker exchanges in one step: kinds and sizes, empty for nothing."""


@dataclass(frozen=True)
class ExchangePattern:
    """What the workers of a strategy without servers exchange among themselves."""

    cycle: int
    bucket: int | None
    """Bytes of the largest bucket; None where whole vectors are exchanged."""
    uniform: bool


def observe(strategy: Strategy, workers: int, seconds: float, name: str) -> ExchangePattern:
    """Run the worker's program of a few ranks, with steps of ``seconds`` seconds and exchanges that take no time."""
    sequence: list[StepExchanges] = []
    steps = _exchanges(strategy, 0, workers, seconds, name)
    length = FIRST
    while (cycle := _cycle(sequence)) is None:
        if length > LONGEST:
            raise UsageError(
                f"strategy {name!r} cannot be predicted: its workers exchange nothing that "
                f"repeats within {LONGEST:,} steps; choose a shorter period"
            )
        while len(sequence) < length:
            sequence.append(next(steps))
        length *= 2
    found = {kind for step in sequence[-cycle:] for kind in step}
    buckets = [bucket for kind, bucket in found if kind == "mean"]
    others = [
        _exchanges(strategy, rank, workers, seconds, name)
        for rank in {min(1, workers - 1), workers - 1} - {0}
    ]
    return ExchangePattern(
        cycle=cycle,
        bucket=max(buckets) if buckets and len(buckets) == len(found) else None,
        uniform=all(next(other) == step for other in others for step in sequence[: 2 * FIRST]),
    )


def updates_before_answering(strategy: Strategy) -> bool:
    """Whether a server applies a gradient before it answers its worker, rather than by the clock."""
    me = Server(rank=0, servers=1, params=torch.zeros(8), grad=torch.zeros(8), initial_workers=(0,))
    program = strategy.server(me)
    worker, messages = Peer("worker", 0), [Push(torch.zeros(8), 0, 0, 1), Join()]
    effect, applied = next(program), False
    while messages or not isinstance(effect, Send | Receive):
        received = (worker, messages.pop()) if isinstance(effect, Receive) else None
        applied |= isinstance(effect, Apply)
        effect = program.send(received)
    return applied


def _cycle(sequence: Sequence[StepExchanges]) -> int | None:
    """The fewest steps whose last two repetitions are the same and exchange something; None where there are none."""
    places = [place for place, step in enumerate(sequence) if step]
    for earlier in reversed(places[:-1]):
        cycle = places[-1] - earlier
        if 2 * cycle <= len(sequence) and sequence[-cycle:] == sequence[-2 * cycle : -cycle]:
            return cycle
    return None


def _exchanges(
    strategy: Strategy, rank: int, workers: int, seconds: float, name: str
) -> Iterator[StepExchanges]:
    """What each step of one worker exchanges; a step ends when the next gradient is asked for."""
    learners = strategy.learner_plan.count or 1
    vector = torch.zeros(8) if learners == 1 else torch.zeros(learners, 8)
    me = Worker(rank=rank, workers=workers, params=vector, grad=vector.clone(), buffers=torch.zeros(0))
    program: Program = strategy.worker(me)
    found: list[tuple[str, int]] = []
    since = 0
    for effect in program:
        since += 1
        if wrong := wrong_effect(effect, since, workers):
            raise _wrong(name, wrong)
        match effect:
            case Gradient(reduce=reduce):
                since = 0
                if me.clock:
                    yield tuple(found)
                    found = []
                me.samples, me.now = 1, me.now + seconds
                me.samples_since_sync += 1
                if reduce is not None:
                    found.append(("mean", max(reduce.first_bucket, reduce.bucket)))
            case Apply() | Clock():
                me.clock += 1
            case AllReduce(tensor=tensor):
                found.append(("all-reduce", tensor.numel()))
                me.total_weight = float(workers)
                if tensor is me.params:
                    me.samples_since_sync = 0
            case Broadcast(tensor=tensor):
                found.append(("broadcast", tensor.numel()))
            case _:
                raise _wrong(
                    name, f"asks for {effect!r}, which a worker without servers cannot do; add a server()"
                )
    raise _wrong(name, ENDS)


def _wrong(name: str, what: str) -> UsageError:
    return UsageError(f"strategy {name!r} cannot be predicted: its worker's program {what}")

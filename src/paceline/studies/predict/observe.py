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
    StartAllReduce,
    Wait,
)
from paceline.strategies.messages import Join, Push

FIRST = 32
ELEMENTS = 2**16
"""Of the vectors that programs are observed with: enough that every fragment has some. Learners share them."""
LONGEST = 2**18

StepExchanges = tuple[tuple[str, int, int | None], ...]
"""What a worker exchanges in one step: kinds, sizes and offsets, empty for nothing."""


@dataclass(frozen=True)
class ExchangePattern:
    """What the workers of a strategy without servers exchange among themselves."""

    cycle: int
    bucket: int | None
    """Bytes of the largest bucket; None where whole vectors are exchanged."""
    uniform: bool
    overlaps: bool = False
    """Whether workers go on while something is exchanged."""
    kept: float = 0.0
    """What a worker keeps for the strategy, in lengths of the flat vector."""


def observe(strategy: Strategy, workers: int, seconds: float, name: str) -> ExchangePattern:
    """Run the worker's program of a few ranks, with steps of ``seconds`` seconds and exchanges that take no time."""
    sequence: list[StepExchanges] = []
    me = _observed_worker(strategy, 0, workers)
    steps = _exchanges(strategy, me, seconds, name)
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
    buckets = [bucket for kind, bucket, _ in found if kind == "mean"]
    others = [
        _exchanges(strategy, _observed_worker(strategy, rank, workers), seconds, name)
        for rank in {min(1, workers - 1), workers - 1} - {0}
    ]
    return ExchangePattern(
        cycle=cycle,
        bucket=max(buckets) if buckets and len(buckets) == len(found) else None,
        uniform=all(next(other) == step for other in others for step in sequence[: 2 * FIRST]),
        overlaps=any(kind == "start" for kind, *_ in found),
        kept=sum(one.numel() for one in me.state.values() if one.is_floating_point()) / me.params.shape[-1],
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


def _observed_worker(strategy: Strategy, rank: int, workers: int) -> Worker:
    learners = strategy.learner_plan.count or 1
    params, grad = (
        torch.zeros(2, ELEMENTS) if learners == 1 else torch.zeros(2, learners, ELEMENTS // learners)
    )
    return Worker(rank, workers, params, grad, buffers=torch.zeros(0), clock=strategy.settled)


def _exchanges(strategy: Strategy, me: Worker, seconds: float, name: str) -> Iterator[StepExchanges]:
    """What each step of one worker exchanges; a step ends when the next gradient is asked for."""
    program: Program = strategy.worker(me)
    found: list[tuple[str, int, int | None]] = []
    since, begun = 0, me.clock
    for effect in program:
        since += 1
        if wrong := wrong_effect(effect, since, me.workers):
            raise _wrong(name, wrong)
        match effect:
            case Gradient(reduce=reduce):
                since = 0
                if me.clock > begun:
                    yield tuple(found)
                    found = []
                me.samples, me.now = 1, me.now + seconds
                me.samples_since_sync += 1
                if reduce is not None:
                    found.append(("mean", max(reduce.first_bucket, reduce.bucket), None))
            case Apply() | Clock():
                me.clock += 1
            case AllReduce(tensor=tensor, offset=offset):
                kind = "start" if isinstance(effect, StartAllReduce) else "all-reduce"
                found.append((kind, tensor.numel(), offset))
                me.total_weight = float(me.workers)
                if tensor is me.params or offset is not None:
                    me.samples_since_sync = 0
            case Wait():
                pass
            case Broadcast(tensor=tensor):
                found.append(("broadcast", tensor.numel(), None))
            case _:
                raise _wrong(
                    name, f"asks for {effect!r}, which a worker without servers cannot do; add a server()"
                )
    raise _wrong(name, ENDS)


def _wrong(name: str, what: str) -> UsageError:
    return UsageError(f"strategy {name!r} cannot be predicted: its worker's program {what}")

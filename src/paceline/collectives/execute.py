"""One rank's part of a schedule: planned once for tensors of one length, carried out over any transport."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.collectives.schedule import Schedule, chunk_bounds, pipelined
from paceline.errors import UsageError
from paceline.shm.operations import Operation


@dataclass(frozen=True, slots=True)
class PlannedSend:
    """Elements of the tensor that go to another rank."""

    peer: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def overlaps(self, others: Iterable["PlannedSend"]) -> bool:
        return any(self.start < other.stop and other.start < self.stop for other in others)


@dataclass(frozen=True, slots=True)
class PlannedReceive(PlannedSend):
    """Elements that come from another rank."""

    reduce: bool
    aside: int | None = None
    """Where in the round's scratch space it arrives; None where it arrives in place."""
    early: bool = True
    """Whether it may arrive while the round before is still going on."""
    frees: tuple[int, ...] = ()
    """The messages of this rank, counted from its first, that must have left before its elements may change."""


@dataclass(frozen=True, slots=True)
class RankRound:
    """What a rank does in one round."""

    incoming: tuple[PlannedReceive, ...]
    outgoing: tuple[PlannedSend, ...]

    @property
    def scratch(self) -> int:
        return sum(one.length for one in self.incoming if one.aside is not None)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """All rounds in which a rank does something."""

    rounds: tuple[RankRound, ...]
    scratch: int
    """Elements of scratch space that a round needs at most."""


def plan_rank(schedule: Schedule, rank: int, length: int) -> RankPlan:
    """What ``rank`` does with ``length`` elements; empty messages are left out, as the other ends leave them out."""
    bounds = chunk_bounds(length, schedule.chunks)
    planner = _Planner()
    for turn in schedule.each_round():
        mine = np.flatnonzero((turn.sources == rank) | (turn.targets == rank))
        peers = np.where(turn.sources == rank, turn.targets, turn.sources)[mine].tolist()
        starts, stops = bounds[turn.starts[mine]].tolist(), bounds[turn.stops[mine]].tolist()
        received, reduces = (turn.targets[mine] == rank).tolist(), turn.reduces[mine].tolist()
        taken, sent = [], []
        for peer, start, stop, comes, reduce in zip(peers, starts, stops, received, reduces, strict=True):
            if start < stop and comes:
                taken.append(PlannedReceive(peer, start, stop, reduce))
            elif start < stop:
                sent.append(PlannedSend(peer, start, stop))
        if taken or sent:
            planner.add(taken, tuple(sent))
    return RankPlan(tuple(planner.rounds), max((one.scratch for one in planner.rounds), default=0))


@dataclass(slots=True)
class _Planner:
    """Finds out, round by round, which messages are in each other's way."""

    rounds: list[RankRound] = field(default_factory=list)
    sent: dict[int, PlannedSend] = field(default_factory=dict)
    """Messages that may still be leaving, counted from the first."""
    count: int = 0
    before: tuple[PlannedSend, ...] = ()
    """What the round before reads and writes."""

    def add(self, taken: list[PlannedReceive], outgoing: tuple[PlannedSend, ...]) -> None:
        self.sent.update(enumerate(outgoing, self.count))
        self.count += len(outgoing)
        incoming: list[PlannedReceive] = []
        aside = 0
        late: set[int] = set()
        for one in taken:
            others = [other for other in taken if other is not one]
            in_place = not one.reduce and not one.overlaps((*outgoing, *others))
            if in_place and one.overlaps(self.before):
                late.add(one.peer)  # and so is what the same rank sends after it, for it arrives in order
            where, early = None if in_place else aside, one.peer not in late
            incoming.append(
                PlannedReceive(one.peer, one.start, one.stop, one.reduce, where, early, self._freed_by(one))
            )
            aside += 0 if in_place else one.length
        self.before = (*outgoing, *taken)
        self.rounds.append(RankRound(tuple(incoming), outgoing))

    def _freed_by(self, one: PlannedReceive) -> tuple[int, ...]:
        """What lies in a message's way; what it covers only in part may lie in a later one's way as well."""
        found = tuple(index for index, other in self.sent.items() if one.overlaps((other,)))
        for index in found:
            if one.start <= self.sent[index].start and self.sent[index].stop <= one.stop:
                del self.sent[index]
        return found


class PendingMessage(Protocol):
    def wait(self) -> object:
        """Return when it has left or arrived, so that its tensor may be changed or read. Called once."""


class MessageTransport(Protocol):
    """What carries messages. Between two ranks they arrive in the order in which they were sent."""

    def send(self, tensor: Tensor, to: int) -> PendingMessage:
        """Begin to send; the tensor does not change until it has left."""

    def receive(self, tensor: Tensor, source: int) -> PendingMessage:
        """Begin to receive into the tensor."""


class Execution:
    """A plan on a flat tensor, once; the operation's ``finish`` is left to the caller.

    Receives are posted before anything is sent, and those of the next round before this one is over, wherever their
    place is free: messages need not wait for the receiver. They are combined in the order of the schedule, so that
    a sum does not depend on which message was quicker.
    """

    def __init__(self, plan: RankPlan, tensor: Tensor, scratch: Tensor, transport: MessageTransport) -> None:
        """``scratch`` has room for two rounds."""
        self._rounds, self._tensor, self._transport = plan.rounds, tensor, transport
        self._spaces = (scratch[: plan.scratch], scratch[plan.scratch :])
        self._leaving: list[PendingMessage | None] = []

    def run(self, operation: Operation) -> None:
        tensor, transport = self._tensor, self._transport
        early = self._post(0, early=True) if self._rounds else {}
        for number, one in enumerate(self._rounds):
            arriving = early | self._post(number, early=False)
            for sent in one.outgoing:
                self._leaving.append(transport.send(tensor[sent.start : sent.stop], sent.peer))
            early = self._post(number + 1, early=True) if number + 1 < len(self._rounds) else {}
            for index, received in enumerate(one.incoming):
                arriving[index].wait()
                self._take(received, self._place(received, number), operation)
        self._settle(range(len(self._leaving)))

    def _post(self, number: int, *, early: bool) -> dict[int, PendingMessage]:
        """Await the early or the late messages of a round; what lies in their place has left before."""
        pending = {}
        for index, one in enumerate(self._rounds[number].incoming):
            if one.early == early:
                if one.aside is None:
                    self._settle(one.frees)
                pending[index] = self._transport.receive(self._place(one, number), one.peer)
        return pending

    def _place(self, one: PlannedReceive, number: int) -> Tensor:
        if one.aside is None:
            return self._tensor[one.start : one.stop]
        return self._spaces[number % 2][one.aside : one.aside + one.length]

    def _take(self, one: PlannedReceive, arrived: Tensor, operation: Operation) -> None:
        if one.aside is None:
            return
        self._settle(one.frees)
        mine = self._tensor[one.start : one.stop]
        if one.reduce:
            operation.combine(mine, arrived)
        else:
            mine.copy_(arrived)

    def _settle(self, sent: Iterable[int]) -> None:
        for index in sent:
            pending = self._leaving[index]
            if pending is not None:
                pending.wait()
                self._leaving[index] = None


class Reducer:
    """All-reduces by one schedule, as one rank takes part in them; plans and scratch space are kept for the next.

    All ranks call with the same lengths, types and operations in the same order: nothing is checked here.
    """

    def __init__(self, schedule: Schedule, rank: int, transport: MessageTransport) -> None:
        if not 0 <= rank < schedule.workers:
            raise UsageError(
                f"rank {rank} has no part in a schedule for {schedule.workers} workers: "
                f"ranks are 0 to {schedule.workers - 1}"
            )
        self.schedule, self.rank = schedule, rank
        self._transport = transport
        self._plans: dict[tuple[int, int], RankPlan] = {}
        self._scratch: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        """Make every rank's tensor the result of all, in place; large ones travel in segments."""
        flat = tensor.contiguous().view(-1)
        plan = self._plan(flat)
        Execution(plan, flat, self._space(2 * plan.scratch, flat), self._transport).run(operation)
        operation.finish(flat, self.schedule.workers)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))

    def _plan(self, flat: Tensor) -> RankPlan:
        key = (len(flat), flat.element_size())
        if key not in self._plans:
            schedule = pipelined(self.schedule, self.schedule.segments(flat.nbytes))
            self._plans[key] = plan_rank(schedule, self.rank, len(flat))
        return self._plans[key]

    def _space(self, size: int, like: Tensor) -> Tensor:
        space = self._scratch.get(like.dtype)
        if space is None or len(space) < size:
            space = self._scratch[like.dtype] = like.new_empty(size)
        return space

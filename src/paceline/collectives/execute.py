"""One rank's part of a schedule, carried out on its own tensor over whatever carries messages."""

from typing import Protocol

import torch
from torch import Tensor

from paceline.collectives.part import Incoming, RankPlan, part
from paceline.collectives.pipeline import pipelined, segments_for
from paceline.collectives.schedule import Schedule
from paceline.errors import UsageError
from paceline.shm.operations import Operation


class Pending(Protocol):
    """A message that is under way."""

    def wait(self) -> object:
        """Return when it has left or arrived, so that its tensor may be changed or read. Called once."""


class Transport(Protocol):
    """What carries messages. Between two ranks they arrive in the order in which they were sent."""

    def send(self, tensor: Tensor, to: int) -> Pending:
        """Begin to send; the tensor does not change until it has left."""

    def receive(self, tensor: Tensor, source: int) -> Pending:
        """Begin to receive into the tensor."""


class Execution:
    """A part on a flat tensor, once; the operation's ``finish`` is left to the caller.

    Receives are posted before anything is sent, and those of the next round before this one is over, wherever their
    place is free: messages need not wait for the receiver. They are combined in the order of the schedule, so that
    a sum does not depend on who was quicker.
    """

    def __init__(self, work: RankPlan, tensor: Tensor, scratch: Tensor, transport: Transport) -> None:
        self._steps, self._tensor, self._transport = work.steps, tensor, transport
        self._spaces = (scratch[: work.scratch], scratch[work.scratch :])
        self._leaving: list[Pending | None] = []

    def run(self, operation: Operation) -> None:
        """Do it."""
        tensor, transport = self._tensor, self._transport
        early = self._post(0, early=True) if self._steps else {}
        for number, step in enumerate(self._steps):
            arriving = early | self._post(number, early=False)
            for sent in step.outgoing:
                self._leaving.append(transport.send(tensor[sent.start : sent.stop], sent.peer))
            early = self._post(number + 1, early=True) if number + 1 < len(self._steps) else {}
            for index, one in enumerate(step.incoming):
                arriving[index].wait()
                self._take(one, self._place(one, number), operation)
        self._settle(range(len(self._leaving)))

    def _post(self, number: int, *, early: bool) -> dict[int, Pending]:
        """Await the early or the late messages of a round; what lies in their place has left before."""
        pending = {}
        for index, one in enumerate(self._steps[number].incoming):
            if one.early == early:
                if one.aside is None:
                    self._settle(one.frees)
                pending[index] = self._transport.receive(self._place(one, number), one.message.peer)
        return pending

    def _place(self, one: Incoming, number: int) -> Tensor:
        if one.aside is None:
            return self._tensor[one.message.start : one.message.stop]
        return self._spaces[number % 2][one.aside : one.aside + one.message.length]

    def _take(self, one: Incoming, arrived: Tensor, operation: Operation) -> None:
        if one.aside is None:
            return
        self._settle(one.frees)
        mine = self._tensor[one.message.start : one.message.stop]
        if one.reduce:
            operation.combine(mine, arrived)
        else:
            mine.copy_(arrived)

    def _settle(self, sent: range | tuple[int, ...]) -> None:
        for index in sent:
            pending = self._leaving[index]
            if pending is not None:
                pending.wait()
                self._leaving[index] = None


class Reducer:
    """All-reduces by one schedule, as one rank takes part in them; plans and scratch space are kept for the next.

    All ranks call with the same lengths, types and operations in the same order: nothing is checked here.
    """

    def __init__(self, schedule: Schedule, rank: int, transport: Transport) -> None:
        if not 0 <= rank < schedule.workers:
            raise UsageError(
                f"rank {rank} has no part in a schedule for {schedule.workers} workers: "
                f"ranks are 0 to {schedule.workers - 1}"
            )
        self.schedule, self.rank = schedule, rank
        self._transport = transport
        self._parts: dict[tuple[int, int], RankPlan] = {}
        self._scratch: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        """Make every rank's tensor the result of all, in place; large ones travel in segments."""
        flat = tensor.contiguous().view(-1)
        mine = self._part(flat)
        Execution(mine, flat, self._space(2 * mine.scratch, flat), self._transport).run(operation)
        operation.finish(flat, self.schedule.workers)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))

    def _part(self, flat: Tensor) -> RankPlan:
        key = (len(flat), flat.element_size())
        if key not in self._parts:
            segments = segments_for(self.schedule, flat.nbytes)
            self._parts[key] = part(pipelined(self.schedule, segments), self.rank, len(flat))
        return self._parts[key]

    def _space(self, size: int, like: Tensor) -> Tensor:
        space = self._scratch.get(like.dtype)
        if space is None or len(space) < size:
            space = self._scratch[like.dtype] = like.new_empty(size)
        return space

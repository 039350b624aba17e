"""One rank's part of a schedule: planned once for tensors of one length, carried out over torch.distributed."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.collectives import build_schedule
from paceline.collectives.schedule import Round, Schedule, chunk_bounds, number_hosts, pipelined
from paceline.errors import UsageError, unknown
from paceline.shm import operations
from paceline.shm.host import host_id
from paceline.shm.operations import OPERATIONS, InvalidCall, Operation, operation_name

_HEADER = 320


class PlannedMessage(NamedTuple):
    """Elements of the tensor that are sent or received; the fields from ``reduce`` on are for those received."""

    peer: int
    start: int
    stop: int
    reduce: bool = False
    aside: int | None = None
    """Where in the round's scratch space it arrives; None where it arrives in place."""
    early: bool = True
    """Whether it may arrive while the round before is still going on."""
    frees: tuple[int, ...] = ()
    """The messages of this rank, counted from its first, that must have left before its elements may change."""

    @property
    def length(self) -> int:
        return self.stop - self.start

    def overlaps(self, others: Iterable["PlannedMessage"]) -> bool:
        return any(self.start < other.stop and other.start < self.stop for other in others)


Messages = tuple[PlannedMessage, ...]


class RankRound(NamedTuple):
    incoming: Messages
    outgoing: Messages


class RankPlan(NamedTuple):
    rounds: tuple[RankRound, ...]
    """Those in which the rank does something."""
    scratch: int
    """Elements of scratch space that a round needs at most."""


def plan_rank(schedule: Schedule, rank: int, length: int) -> RankPlan:
    """What ``rank`` does with ``length`` elements; empty messages are left out, as the other ends leave them out."""
    bounds = chunk_bounds(length, schedule.chunks).tolist()
    rounds: list[RankRound] = []
    sent: dict[int, PlannedMessage] = {}  # messages that may still be leaving, counted from the first
    before: Messages = ()  # what the round before reads and writes
    count = scratch = 0
    for turn in schedule.each_round():
        taken, outgoing = _messages(turn, rank, bounds)
        if taken or outgoing:
            sent.update(enumerate(outgoing, count))
            count += len(outgoing)
            incoming, aside = _place(taken, outgoing, before, sent)
            rounds.append(RankRound(incoming, outgoing))
            before, scratch = (*outgoing, *taken), max(scratch, aside)
    return RankPlan(tuple(rounds), scratch)


def _messages(turn: Round, rank: int, bounds: Sequence[int]) -> tuple[Messages, Messages]:
    mine = (turn.sources == rank) | (turn.targets == rank)
    columns = (column[mine].tolist() for column in turn.columns)
    taken, sent = [], []
    for source, target, first, last, reduce in zip(*columns, strict=True):
        start, stop = bounds[first], bounds[last]
        if start < stop and target == rank:
            taken.append(PlannedMessage(source, start, stop, reduce))
        elif start < stop:
            sent.append(PlannedMessage(target, start, stop))
    return tuple(taken), tuple(sent)


def _place(
    taken: Messages, outgoing: Messages, before: Messages, sent: dict[int, PlannedMessage]
) -> tuple[Messages, int]:
    """Decide where and when messages arrive, by which others are in their way; with the scratch space they need."""
    incoming, aside, late = [], 0, set()
    for one in taken:
        others = [other for other in taken if other is not one]
        in_place = not one.reduce and not one.overlaps((*outgoing, *others))
        if in_place and one.overlaps(before):
            late.add(one.peer)  # and so is what the same rank sends after it, for it arrives in order
        frees = tuple(index for index, other in sent.items() if one.overlaps((other,)))
        for index in frees:  # what is covered only in part may be in a later one's way as well
            if one.start <= sent[index].start and sent[index].stop <= one.stop:
                del sent[index]
        where, early = None if in_place else aside, one.peer not in late
        incoming.append(one._replace(aside=where, early=early, frees=frees))
        aside += 0 if in_place else one.length
    return tuple(incoming), aside


class TorchTransport:
    """Messages as isend and irecv of one group; ranks are those in the group. Between two, messages stay in order."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def send(self, tensor: Tensor, to: int) -> dist.Work:
        """Begin to send; the tensor must not change until it has left."""
        work = dist.isend(tensor, group=self._group, group_dst=to)
        assert work is not None
        return work

    def receive(self, tensor: Tensor, source: int) -> dist.Work:
        work = dist.irecv(tensor, group=self._group, group_src=source)
        assert work is not None
        return work


class Execution:
    """A plan on a flat tensor, once; the operation's ``finish`` is left to the caller.

    Receives are posted a round ahead wherever their place is free: messages need not wait for the receiver. They are
    combined in the order of the schedule, so that a sum does not depend on which message was quicker.
    """

    def __init__(self, plan: RankPlan, tensor: Tensor, scratch: Tensor, transport: TorchTransport) -> None:
        """``scratch`` has room for two rounds."""
        self._rounds, self._tensor, self._transport = plan.rounds, tensor, transport
        self._spaces = (scratch[: plan.scratch], scratch[plan.scratch :])
        self._leaving: list[dist.Work | None] = []

    def run(self, operation: Operation) -> None:
        early = self._post(0, early=True)
        for number, one in enumerate(self._rounds):
            arriving = early | self._post(number, early=False)
            for sent in one.outgoing:
                self._leaving.append(self._transport.send(self._tensor[sent.start : sent.stop], sent.peer))
            early = self._post(number + 1, early=True)
            for index, received in enumerate(one.incoming):
                arriving[index].wait()
                if received.aside is not None:
                    self._take(received, self._place(received, number), operation)
        self._settle(range(len(self._leaving)))

    def _post(self, number: int, *, early: bool) -> dict[int, dist.Work]:
        """Await the early or the late messages of a round; what lies in their place has left before."""
        pending = {}
        for one in self._rounds[number : number + 1]:
            for index, received in enumerate(one.incoming):
                if received.early == early:
                    if received.aside is None:
                        self._settle(received.frees)
                    pending[index] = self._transport.receive(self._place(received, number), received.peer)
        return pending

    def _place(self, one: PlannedMessage, number: int) -> Tensor:
        if one.aside is None:
            return self._tensor[one.start : one.stop]
        return self._spaces[number % 2][one.aside : one.aside + one.length]

    def _take(self, one: PlannedMessage, arrived: Tensor, operation: Operation) -> None:
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
    """All-reduces by one schedule, as one rank takes part in them: nothing is compared among ranks."""

    def __init__(self, schedule: Schedule, rank: int, transport: TorchTransport) -> None:
        if not 0 <= rank < schedule.workers:
            raise UsageError(
                f"rank {rank} has no part in a schedule for {schedule.workers} workers: "
                f"ranks are 0 to {schedule.workers - 1}"
            )
        self.schedule, self.rank, self._transport = schedule, rank, transport
        self._plans: dict[tuple[int, int], RankPlan] = {}
        self._scratch: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        flat = tensor.contiguous().view(-1)
        key = (len(flat), flat.element_size())
        if key not in self._plans:
            schedule = pipelined(self.schedule, self.schedule.segments(flat.nbytes))
            self._plans[key] = plan_rank(schedule, self.rank, len(flat))
        plan = self._plans[key]
        scratch = self._scratch.get(flat.dtype)
        if scratch is None or len(scratch) < 2 * plan.scratch:
            scratch = self._scratch[flat.dtype] = flat.new_empty(2 * plan.scratch)
        Execution(plan, flat, scratch, self._transport).run(operation)
        operation.finish(flat, self.schedule.workers)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))


def find_operation(name: str, dtype: torch.dtype) -> Operation:
    if name not in OPERATIONS:
        raise unknown("operation", name, OPERATIONS)
    try:
        return operations.find_operation(name, dtype)
    except InvalidCall as error:
        raise UsageError(str(error)) from error


def all_reduce(
    tensor: Tensor,
    schedule: Schedule | str,
    op: str | dist.ReduceOp.RedOpType = "sum",
    group: dist.ProcessGroup | None = None,
) -> None:
    """Make the tensor of every rank in the group the result of all, in place, by a schedule or the one of that name.

    Before anything moves, all ranks compare what they ask for, in an all-gather of 320 bytes. Where that differs, or
    cannot be done, every rank raises a UsageError and none hangs. ``op`` may be torch's, such as ``ReduceOp.SUM``.
    """
    name = operation_name(op)
    dense = isinstance(tensor, Tensor) and tensor.layout == torch.strided
    if dense:
        what = f"{tensor.numel():,} elements of {tensor.dtype} on {tensor.device.type}"
    else:
        layout = getattr(tensor, "layout", f"a {type(tensor).__name__}")
        what = str(layout).removeprefix("torch.")
    by = schedule if isinstance(schedule, str) else schedule.description
    hosts = _agree(f"{name} of {what} by {by}", group)
    if not dense:
        raise UsageError(f"schedules move dense tensors, not {what}; convert it with to_dense()")
    if tensor.device.type != "cpu":
        raise UsageError(
            f"schedules move tensors of the CPU, not of {tensor.device}; copy it there, or all-reduce natively"
        )
    operation = find_operation(name, tensor.dtype)
    chosen = build_schedule(schedule, number_hosts(hosts)) if isinstance(schedule, str) else schedule
    if chosen.workers != len(hosts):
        raise UsageError(
            f"a schedule for {chosen.workers} workers does not fit a group of {len(hosts)}: build it for {len(hosts)}"
        )
    Reducer(chosen, dist.get_rank(group), TorchTransport(group)).all_reduce(tensor, operation)


def _agree(wish: str, group: dist.ProcessGroup | None) -> Sequence[str]:
    text = json.dumps([wish[:160], host_id()[:100]])
    mine = torch.frombuffer(bytearray(text.encode().ljust(_HEADER)), dtype=torch.uint8)
    texts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(texts, mine, group=group)
    wishes, hosts = zip(*(json.loads(bytes(one.tolist())) for one in texts), strict=True)
    for rank, other in enumerate(wishes):
        if other != wishes[0]:
            raise UsageError(
                f"rank {rank} asks for {other}, and rank 0 for {wishes[0]}; all ranks must ask for the same"
            )
    return hosts

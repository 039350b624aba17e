"""One rank's part of a schedule, worked out once for tensors of one length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.collectives.schedule import Round, Schedule, Then, chunk_bounds


@dataclass(frozen=True, slots=True)
class Message:
    """Elements of the tensor, to or from another rank."""

    peer: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many elements."""
        return self.stop - self.start

    def covers(self, other: "Message") -> bool:
        """Whether it holds all elements of another."""
        return self.start <= other.start and other.stop <= self.stop

    def meets(self, others: Iterable["Message"]) -> bool:
        """Whether it shares elements with any of them."""
        return any(self.start < other.stop and other.start < self.stop for other in others)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message to take in."""

    message: Message
    reduce: bool
    aside: int | None
    """Where in the round's scratch space it arrives; None where it arrives in place."""
    early: bool
    """Whether it may arrive while the round before is still going on."""
    frees: tuple[int, ...]
    """The messages of this rank, counted from its first, that must have left before its elements may change."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank does in one round."""

    incoming: tuple[Incoming, ...]
    outgoing: tuple[Message, ...]

    @property
    def scratch(self) -> int:
        """Elements of scratch space."""
        return sum(one.message.length for one in self.incoming if one.aside is not None)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """All rounds in which a rank does something."""

    steps: tuple[Step, ...]
    scratch: int
    """Elements of scratch space that a round needs at most."""


def part(schedule: Schedule, rank: int, length: int) -> RankPlan:
    """What ``rank`` does with ``length`` elements; empty messages are left out, as the other ends leave them out."""
    bounds = chunk_bounds(length, schedule.chunks)
    planner = _Planner()
    for turn in schedule.rounds:
        planner.add(*_mine(turn, rank, bounds))
    return RankPlan(tuple(planner.steps), max((step.scratch for step in planner.steps), default=0))


def _mine(
    turn: Round, rank: int, bounds: Sequence[int]
) -> tuple[list[tuple[Message, bool]], tuple[Message, ...]]:
    """What the rank takes in, with whether it is reduced, and what it sends."""
    taken, sent = [], []
    for one in turn.transfers:
        if rank not in (one.source, one.target) or bounds[one.start] == bounds[one.stop]:
            continue
        if one.target == rank:
            message = Message(one.source, bounds[one.start], bounds[one.stop])
            taken.append((message, one.then is Then.REDUCE))
        else:
            sent.append(Message(one.target, bounds[one.start], bounds[one.stop]))
    return taken, tuple(sent)


@dataclass(slots=True)
class _Planner:
    """Finds out, round by round, which messages are in each other's way."""

    steps: list[Step] = field(default_factory=list)
    sent: dict[int, Message] = field(default_factory=dict)
    """Messages that may still be leaving."""
    count: int = 0
    before: tuple[Message, ...] = ()
    """What the round before reads and writes."""

    def add(self, taken: list[tuple[Message, bool]], outgoing: tuple[Message, ...]) -> None:
        if not taken and not outgoing:
            return
        self.sent.update(enumerate(outgoing, self.count))
        self.count += len(outgoing)
        incoming: list[Incoming] = []
        aside = 0
        late: set[int] = set()
        for message, reduce in taken:
            others = [other for other, _ in taken if other is not message]
            in_place = not reduce and not message.meets((*outgoing, *others))
            if in_place and message.meets(self.before):
                late.add(message.peer)  # and so is what the same rank sends after it, for it arrives in order
            early = message.peer not in late
            frees = self._freeing(message)
            incoming.append(Incoming(message, reduce, None if in_place else aside, early, frees))
            aside += 0 if in_place else message.length
        self.before = (*outgoing, *(message for message, _ in taken))
        self.steps.append(Step(tuple(incoming), outgoing))

    def _freeing(self, message: Message) -> tuple[int, ...]:
        """What lies in a message's way; what it covers only in part may lie in a later one's way as well."""
        found = tuple(index for index, other in self.sent.items() if message.meets((other,)))
        for index in found:
            if message.covers(self.sent[index]):
                del self.sent[index]
        return found

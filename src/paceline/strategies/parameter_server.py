"""The parameter server in its three classical forms.

Servers keep the parameters; workers push gradients and get the newest parameters back. The forms differ in whom a
server lets go on (``consistency.py``). An update is always the same: before somebody goes on, the mean of what has
come since the last update is applied in one step of the job's optimizer. With a bound of 0 that is a whole round,
so stale-synchronous training is the synchronous server; without a bound it is one gradient, so it is the
asynchronous one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import torch

from paceline.errors import UsageError
from paceline.records.servers import AppliedGradient
from paceline.strategies.base import Server, SyncPoint, Worker, parts, take_over
from paceline.strategies.consistency import Bound, Gate, Quorum, Rule
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Clock,
    Gradient,
    Peer,
    Program,
    Receive,
    Send,
)
from paceline.strategies.gathering import Gathered
from paceline.strategies.messages import Join, Left, Model, Pull, Push, Rest

SHORTEST = 0.001
"""Seconds between updates by the clock: a server needs some time for messages."""


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """What the three forms share: a worker's program, a server's, and how gradients become an update."""

    damped: bool = False
    """Divide a gradient by 1 + its staleness (Zhang et al., 2016): calmer where workers are uneven, else slower."""

    weighted: bool = True
    """Whether a gradient counts by its samples; else every worker's counts the same."""

    scaled: bool = True
    """Use k/n of the rate for an update from k of n workers, so that a sample moves the model as far as under ps."""

    @property
    def sync_point(self) -> SyncPoint:
        """Each worker comes when the servers have seen enough samples."""
        return SyncPoint.ON_REQUEST

    @property
    def rule(self) -> Rule:
        """Who may go on."""
        raise NotImplementedError

    def worker(self, me: Worker) -> Program:
        """Compute on what the servers gave, push, take over what they give back."""
        # Server 0 first: it keeps newcomers out of meetings. To be counted elsewhere and kept out there is a deadlock.
        first = yield from _ask(me, {0: Join()})
        others = yield from _ask(me, dict.fromkeys(range(1, me.servers), Join()))
        versions = first | others
        while True:
            yield Gradient()
            grads = enumerate(parts(me.grad, me.servers))
            versions = yield from _ask(
                me, {server: Push(part, me.clock, versions[server], me.samples) for server, part in grads}
            )
            yield Clock()

    def central(self, me: Worker) -> Program:
        """The servers' copy, once all workers have come; until then this one holds nobody back."""
        for server in range(me.servers):
            yield Send(Peer("server", server), Rest())
        yield AllReduce(torch.zeros(1), op="sum")
        yield from _ask(me, dict.fromkeys(range(me.servers), Pull()))
        return me.params

    def server(self, me: Server) -> Program:
        """Gather gradients; before anybody who has handed one in goes on, update."""
        desk = _Desk(me, self.rule)
        while True:
            sender, message = yield Receive()
            self._take(desk, sender.rank, message)
            passing = desk.gate.let_pass()
            if any(worker in desk.gathered for worker in passing):
                yield self._update(desk)
            for worker in passing:
                yield desk.answer(worker)

    def _take(self, desk: "_Desk", worker: int, message: object) -> None:
        """Whatever a message says about the one who sent it."""
        desk.arrived[worker] = desk.me.now
        match message:
            case Push():
                desk.gate.hand_in(worker)
                self._gather(desk, worker, message)
            case Join() if desk.me.rank == 0:  # one server keeps newcomers out of meetings, for all
                desk.gate.join(worker)
            case Join():
                desk.gate.enter(worker)
            case Rest():
                desk.gate.rest(worker)
            case Pull():
                desk.gate.wake(worker)
                desk.me.met = desk.me.seen
            case Left():
                desk.gate.leave(worker)

    def _update(self, desk: "_Desk") -> Apply:
        """One step along the mean of what has come; what damping has left out makes it smaller."""
        mean = desk.gathered.mean(out=desk.me.grad)
        part = len(mean.gradients) / desk.gate.present if self.scaled else 1.0
        return Apply(mean.gradients, rate=mean.used * part)

    def _gather(self, desk: "_Desk", worker: int, push: Push) -> None:
        desk.gathered.keep(push.grad, *self._credit(desk.me, worker, push))

    def _credit(self, me: Server, worker: int, push: Push) -> tuple[AppliedGradient, float, float]:
        """Whose gradient it is, what it weighs in a mean, and how much of that is used."""
        staleness = max(0, me.version - push.version)
        credit = AppliedGradient(worker, push.clock, push.version, staleness, push.samples)
        weight = push.samples if self.weighted else 1.0
        return credit, weight, 1 / (1 + staleness) if self.damped else 1.0


@dataclass(frozen=True, kw_only=True)
class Synchronous(ParameterServer):
    """Rounds: every worker's gradient, or all but the slowest, in one update (staleness 0)."""

    backup: int = 0
    """How many of a round's slowest gradients are dropped: more waits less for stragglers and wastes more work."""

    def __post_init__(self) -> None:
        if self.backup < 0:
            raise UsageError(
                f"backup={self.backup} is too small: 0 waits for every worker, 1 for all but one"
            )

    @property
    def rule(self) -> Rule:
        """All but the back-up workers."""
        return Quorum(self.backup)

    def _gather(self, desk: "_Desk", worker: int, push: Push) -> None:
        """A gradient of a round that is over comes too late: it is dropped and its worker joins the present one."""
        if push.version < desk.me.version:
            desk.gate.excuse(worker)
        else:
            super()._gather(desk, worker, push)


@dataclass(frozen=True, kw_only=True)
class StaleSynchronous(ParameterServer):
    """Nobody gets far ahead: a worker waits only when the slowest is too far behind (SSP; Ho et al., 2013)."""

    staleness: int = 3
    """Steps by which a worker may be ahead of the slowest: 0 is synchronous, more waits less on older parameters."""

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise UsageError(f"staleness={self.staleness} is too small: it must be 0 (synchronous) or more")

    @property
    def rule(self) -> Rule:
        """The slowest worker's clock decides."""
        return Bound(self.staleness)


@dataclass(frozen=True, kw_only=True)
class Asynchronous(ParameterServer):
    """Nobody waits: a gradient is applied when it comes, however old the parameters it was computed on."""

    every: float = 0.0
    """Seconds between updates: 0 updates with every gradient, more gathers all gradients that came in between."""

    def __post_init__(self) -> None:
        if self.every and not SHORTEST <= self.every < inf:
            raise UsageError(
                f"every={self.every:g} cannot be: give at least {SHORTEST:g} seconds between updates, "
                "or 0 to update with every gradient"
            )

    @property
    def rule(self) -> Rule:
        """No bound."""
        return Bound(inf)

    def server(self, me: Server) -> Program:
        """Update with every gradient, or when it is time, with what has come."""
        if not self.every:
            yield from super().server(me)
        desk, tick = _Desk(me, self.rule), me.now + self.every
        while True:
            delivery = yield Receive(until=tick)
            if desk.gathered and (delivery is None or isinstance(delivery[1], Pull)):
                yield self._update(desk)
            if delivery is None:
                tick = max(tick + self.every, me.now)
            else:
                self._take(desk, delivery[0].rank, delivery[1])
            for worker in desk.gate.let_pass():
                yield desk.answer(worker)

    def _gather(self, desk: "_Desk", worker: int, push: Push) -> None:
        """A worker that goes on before the update writes its next gradient over this one: keep a copy."""
        if self.every:
            desk.gathered.add(push.grad, *self._credit(desk.me, worker, push))
        else:
            super()._gather(desk, worker, push)


class _Desk:
    """What a server has before it: who waits since when, and which gradients have come."""

    def __init__(self, me: Server, rule: Rule) -> None:
        self.me, self.gate, self.gathered = me, Gate(rule, me.awaited), Gathered()
        self.arrived: dict[int, float] = {}

    def answer(self, worker: int) -> Send:
        """The parameters as they are, and for how long this worker was kept."""
        me = self.me
        held = me.now - self.arrived[worker]
        return Send(Peer("worker", worker), Model(me.params, me.version, me.seen, me.met, held))


def _ask(me: Worker, questions: Mapping[int, object]) -> Program:
    """Ask servers their questions and take over the parameters of their answers; return their versions."""
    for server, question in questions.items():
        yield Send(Peer("server", server), question)
    versions = {}
    for _ in questions:
        sender, model = yield Receive()
        take_over(parts(me.params, me.servers)[sender.rank], model.params)
        versions[sender.rank] = model.version
        if sender.rank == 0:
            me.seen, me.met = model.seen, model.met
    return versions

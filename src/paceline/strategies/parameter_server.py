"""The parameter server in its three classical forms.

Servers keep the parameters; workers push gradients and receive the newest parameters. The forms differ in which worker
a server lets proceed (``consistency.py``). An update is always the same: before a worker proceeds, the mean of the
gradients since the last update is applied in one step of the job's optimizer. With a staleness bound of 0 that is a
whole round, so stale-synchronous training is the synchronous server; without a bound it is one gradient, so it is the
asynchronous one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated

import torch
from torch import Tensor

from paceline.records.servers import AppliedGradient
from paceline.specs.ranges import Range, at_least
from paceline.strategies.base import Server, Strategy, SyncPoint, Worker, copy_unless_shared, server_slices
from paceline.strategies.consistency import Gate, MayProceed
from paceline.strategies.effects import AllReduce, Apply, Clock, Gradient, Peer, Program, Receive, Send
from paceline.strategies.messages import Join, Leave, Model, Pause, Pull, Push

INTERVAL = Range(
    "at least 0.001 seconds between updates, or 0 to update with every gradient",
    lambda seconds: not seconds or 0.001 <= seconds < inf,  # a server needs some time for messages
)


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """What the three forms share: a worker's program, a server's, and how gradients become an update."""

    damped: bool = False
    """Divide a gradient by 1 + its staleness (Zhang et al., 2016): calmer where workers are uneven, else slower."""
    weighted: bool = True
    """Whether a gradient counts by its samples; else every worker's counts the same."""
    scaled: bool = True
    """Use k/n of the rate for an update from k of n workers, so that a sample moves the model as far as under ps."""

    sync_point = SyncPoint.ON_REQUEST

    def may_proceed(self, clock: int, slowest: int, active: int, waiting: int) -> bool:  # noqa: ARG002
        """Whether a worker at this clock proceeds; the others are over all active workers.

        By the staleness bound s: while clock - slowest <= s (Ho et al., 2013).
        """
        assert self.staleness_bound is not None, "a rule of another kind says so here"
        return clock - slowest <= self.staleness_bound

    def worker(self, me: Worker) -> Program:
        """Compute on the servers' parameters, push, receive the new ones."""
        # Server 0 first: it admits no worker during a synchronization, and no other may count one that it keeps out.
        first = yield from _request(me, {0: Join()})
        others = yield from _request(me, dict.fromkeys(range(1, me.servers), Join()))
        versions = first | others
        while True:
            yield Gradient()
            grads = enumerate(server_slices(me.grad, me.servers))
            versions = yield from _request(
                me, {server: Push(grad, me.clock, versions[server], me.samples) for server, grad in grads}
            )
            yield Clock()

    def central(self, me: Worker) -> Program:
        """The servers' copy, once all workers are here; until then no worker waits for this one."""
        for server in range(me.servers):
            yield Send(Peer("server", server), Pause())
        yield AllReduce(torch.zeros(1), op="sum")
        yield from _request(me, dict.fromkeys(range(me.servers), Pull()))
        return me.params

    def server(self, me: Server) -> Program:
        """Collect gradients; before a worker that has pushed one proceeds, update."""
        state = _ServerState(me, self.may_proceed)
        while True:
            sender, message = yield Receive()
            self._handle(state, sender.rank, message)
            proceeding = state.gate.proceeding()
            if any(worker in state.pending for worker in proceeding):
                yield self._update(state)
            for worker in proceeding:
                yield state.answer(worker)

    def _handle(self, state: "_ServerState", worker: int, message: object) -> None:
        state.arrived[worker] = state.me.now
        match message:
            case Push():
                state.gate.push(worker)
                self._collect(state, worker, message)
            case Join() if state.me.rank == 0:  # which keeps joining workers out of synchronizations, for all
                state.gate.join(worker)
            case Join():
                state.gate.enter(worker)
            case Pause():
                state.gate.pause(worker)
            case Pull():
                state.gate.resume(worker)
                state.me.seen_at_sync = state.me.seen
            case Leave():
                state.gate.leave(worker)

    def _update(self, state: "_ServerState") -> Apply:
        """One step along the mean of the pending gradients; what damping has left out makes it smaller."""
        gradients, used = state.pending.reduce(out=state.me.grad)
        fraction = len(gradients) / state.gate.present if self.scaled else 1.0
        return Apply(gradients, rate=used * fraction)

    def _collect(self, state: "_ServerState", worker: int, push: Push) -> None:
        state.pending.hold(push.grad, *self._credit(state.me, worker, push))

    def _credit(self, me: Server, worker: int, push: Push) -> tuple[AppliedGradient, float, float]:
        """Whose gradient it is, its weight in a mean, and how much of that is used."""
        staleness = max(0, me.version - push.version)
        credit = AppliedGradient(worker, push.clock, push.version, staleness, push.samples)
        weight = push.samples if self.weighted else 1.0
        return credit, weight, 1 / (1 + staleness) if self.damped else 1.0


@dataclass(frozen=True, kw_only=True)
class Synchronous(ParameterServer):
    """Rounds: every worker's gradient, or all but the slowest, in one update (staleness 0)."""

    backup: Annotated[int, at_least(0)] = 0
    """How many of a round's slowest gradients are dropped: more waits less for stragglers and wastes more work."""

    @property
    def staleness_bound(self) -> float | None:
        return None if self.backup else 0.0

    def may_proceed(self, clock: int, slowest: int, active: int, waiting: int) -> bool:  # noqa: ARG002
        """A round is over when all but the backup workers have pushed (Chen et al., 2016)."""
        return waiting >= max(1, active - self.backup)

    @property
    def least_workers(self) -> int:
        return self.backup + 1

    def _collect(self, state: "_ServerState", worker: int, push: Push) -> None:
        """Drop a gradient of an earlier round; its worker joins the current one."""
        if push.version < state.me.version:
            state.gate.release(worker)
        else:
            super()._collect(state, worker, push)


@dataclass(frozen=True, kw_only=True)
class StaleSynchronous(ParameterServer):
    """A worker waits only when the slowest is too far behind (SSP; Ho et al., 2013)."""

    staleness: Annotated[int, at_least(0)] = 3
    """Steps by which a worker may be ahead of the slowest: 0 is synchronous, more waits less on older parameters."""

    @property
    def staleness_bound(self) -> float:
        return self.staleness


@dataclass(frozen=True, kw_only=True)
class Asynchronous(ParameterServer):
    """No worker waits: a gradient is applied when it arrives, however old the parameters it was computed on."""

    every: Annotated[float, INTERVAL] = 0.0
    """Seconds between updates: 0 updates with every gradient, more collects all gradients in between."""
    staleness_bound = inf

    def server(self, me: Server) -> Program:
        """Update with every gradient, or at intervals with all that have arrived."""
        if not self.every:
            yield from super().server(me)
        state, tick = _ServerState(me, self.may_proceed), me.now + self.every
        while True:
            received = yield Receive(until=tick)
            if state.pending and (received is None or isinstance(received[1], Pull)):
                yield self._update(state)
            if received is None:
                tick = max(tick + self.every, me.now)
            else:
                self._handle(state, received[0].rank, received[1])
            for worker in state.gate.proceeding():
                yield state.answer(worker)

    def _collect(self, state: "_ServerState", worker: int, push: Push) -> None:
        """Copy the gradient where its worker proceeds before the update: it writes the next one over it."""
        if self.every:
            state.pending.accumulate(push.grad, *self._credit(state.me, worker, push))
        else:
            super()._collect(state, worker, push)


class GradientBuffer:
    """One gradient per worker, so that memory is bounded and the mean does not depend on the order of arrival."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Tensor, float]] = {}
        """Of each worker: its gradient, and the weight of it that is used."""
        self._gradients: list[AppliedGradient] = []
        self._weight = 0.0

    def __bool__(self) -> bool:
        return bool(self._gradients)

    def __contains__(self, worker: int) -> bool:
        return worker in self._pending

    def hold(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a gradient in without copying it; ``share`` of its weight is used, all of it is counted."""
        self._gradients.append(credit)
        self._weight += weight
        self._pending[credit.worker] = grad, weight * share

    @torch.no_grad()
    def accumulate(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a copy of a gradient in, averaged with what its worker has pushed before."""
        before = self._pending.get(credit.worker)
        mean, added = grad.clone(), weight * share
        self.hold(mean, credit, weight, share)
        if before is not None:
            total = before[1] + added or 1.0  # an epoch's last batch may have no samples for a worker
            mean.mul_(added / total).add_(before[0], alpha=before[1] / total)
            self._pending[credit.worker] = mean, total

    @torch.no_grad()
    def reduce(self, out: Tensor) -> tuple[tuple[AppliedGradient, ...], float]:
        """Write the mean, added in rank order, and forget the gradients.

        Return whose they were, and the fraction of their weight that was used: the rest makes the step smaller.
        """
        used = sum(weight for _, weight in self._pending.values())
        out.zero_()
        for _, (grad, weight) in sorted(self._pending.items()) if used else ():
            out.add_(grad, alpha=weight / used)
        reduced = tuple(self._gradients), used / self._weight if self._weight else 1.0
        self._pending.clear()
        self._gradients.clear()
        self._weight = 0.0
        return reduced


class _ServerState:
    """Which workers wait since when, and which gradients are pending."""

    def __init__(self, me: Server, may_proceed: MayProceed) -> None:
        self.me, self.gate, self.pending = me, Gate(may_proceed, me.initial_workers), GradientBuffer()
        self.arrived: dict[int, float] = {}

    def answer(self, worker: int) -> Send:
        me = self.me
        held = me.now - self.arrived[worker]
        return Send(Peer("worker", worker), Model(me.params, me.version, me.seen, me.seen_at_sync, held))


def _request(me: Worker, messages: Mapping[int, object]) -> Program:
    """Send a message to each server and take the parameters of their answers; return their versions."""
    for server, message in messages.items():
        yield Send(Peer("server", server), message)
    versions = {}
    for _ in messages:
        sender, model = yield Receive()
        copy_unless_shared(server_slices(me.params, me.servers)[sender.rank], model.params)
        versions[sender.rank] = model.version
        if sender.rank == 0:
            me.seen, me.seen_at_sync = model.seen, model.seen_at_sync
    return versions

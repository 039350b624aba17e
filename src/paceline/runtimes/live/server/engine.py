"""Carries a server's program out: real sockets, the job's optimizer on its part, and the wall clock."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

from paceline.errors import RunFailed
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document
from paceline.records.lock import RunLock
from paceline.records.servers import Entry, Received, ServerLog, ServerTotals, Ticked, Updated
from paceline.runtimes.live.heartbeat import Phase
from paceline.runtimes.live.server.attendance import Expected
from paceline.runtimes.live.server.collectives import OPERATIONS, ElasticCollectives, Gift
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.timeouts import SILENCE
from paceline.runtimes.live.wire.encoding import Envelope
from paceline.runtimes.live.wire.messages import (
    EXPELLED,
    AllDocuments,
    Contribution,
    Died,
    Document,
    GetTotals,
    Goodbye,
    Hello,
    Refusal,
    Result,
    SaveShard,
    ShardSaved,
    TotalsReply,
    Welcome,
)
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import ParameterShard
from paceline.strategies.base import Server
from paceline.strategies.effects import Apply, Peer, Receive, Send
from paceline.strategies.messages import MESSAGES, Leave

_GLANCE = 0.1
_OVER = "the run is over"


class Beating(Protocol):
    """Somebody who is told of every update, and what the server is doing."""

    def beat(self, step: int) -> None:
        """An update has been made."""

    def enter(self, phase: Phase) -> None:
        """A phase begins."""


@dataclass(kw_only=True)
class Book:
    """What a server leaves behind: its log, its totals and its checkpoints."""

    log: ServerLog
    totals: ServerTotals
    entries: int
    """Lines in the log."""
    checkpoints: Checkpoints
    lock: RunLock

    def write(self, entry: Entry) -> None:
        """Log and count."""
        self.entries += 1
        self.log.append(entry)
        self.totals.add(entry)

    def save(self, step: int, me: Server, part: ParameterShard) -> None:
        """Write the server's part of a checkpoint; older ones go, but those that other servers may need yet."""
        self.lock.check()
        self.log.flush()
        self.checkpoints.make_room(me.rank)
        numbers = {
            "version": me.version,
            "seen": me.seen,
            "seen_at_sync": me.seen_at_sync,
            "entries": self.entries,
        }
        self.checkpoints.save(step, me.rank, {"part": part.state(), "server": numbers})


class ServerEngine:
    """Interprets one server's effects, and looks after the workers: who comes, who goes, what they do together."""

    def __init__(
        self,
        *,
        me: Server,
        part: ParameterShard,
        prepared: Prepared,
        socket: ServerSocket,
        book: Book,
        heartbeat: Beating,
        stop_requested: Callable[[], bool],
        invitation: dict[str, Any],
        begun: float,
        silence: float = SILENCE,
        say: Callable[[str], None] = lambda _: None,
        hosts: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """``invitation`` is what a worker that joins late is told; ``begun`` the run's time so far.

        A worker that says nothing for ``silence`` seconds is given up; server 0 tells the user with ``say``, and where
        it was by ``hosts``.
        """
        assert prepared.strategy.served
        self.me, self.part, self.socket, self.book, self.heartbeat = me, part, socket, book, heartbeat
        self._strategy, self._shards, self._agenda = prepared.strategy, prepared.shards, prepared.agenda
        self._stop_requested, self._invitation = stop_requested, invitation
        workers = prepared.settings.workers
        self._expected, self._circle = (
            Expected(workers, socket.heard, silence),
            ElasticCollectives(range(workers)),
        )
        self._silence, self._say, self._hosts = silence, say, hosts
        self._gone: deque[tuple[int, Leave, str]] = deque()
        self._clocks: dict[int, int] = {}
        self._saved = -1
        self._asked_to_keep: set[int] = set()
        self._abandoned = True
        self._finished = False
        self._let_in = set(range(workers))
        self._stopping = self._ticked = False
        self._origin = perf_counter() - begun
        self._do: dict[type, Callable[[Any], Any]] = {
            Receive: self._receive,
            Send: self._send,
            Apply: self._apply,
        }

    def run(self) -> str:
        """Serve until the last worker has gone: "abandoned" where all have died, else "budget"."""
        program = self._strategy.server(self.me)
        answer = None
        self.me.now = self._now
        while True:
            effect = program.send(answer)
            if type(effect) not in self._do:
                raise RunFailed(
                    f"the server's program asks for {type(effect).__name__}, which servers cannot do"
                )
            try:
                answer = self._do[type(effect)](effect)
            except _Over:
                program.close()
                return "abandoned" if self._abandoned else "budget"
            self.me.now = self._now

    @property
    def _now(self) -> float:
        return perf_counter() - self._origin

    def _apply(self, effect: Apply) -> None:
        me = self.me
        self.part.apply(self._agenda.epoch(self._shards.steps_through(me.seen)), effect.rate)
        me.version += 1
        me.seen += sum(credit.samples for credit in effect.gradients)
        self.book.write(Updated(self._now, me.version, effect.gradients))
        self.heartbeat.beat(me.version)

    def _send(self, effect: Send) -> None:
        worker = effect.to.rank
        self._let_in.add(worker)
        if self.me.rank == 0 and worker not in self._circle.members and worker in self._expected.workers:
            self._circle.add(worker)
        self.socket.send(worker, effect.message, stop=self._stopping)

    def _receive(self, effect: Receive) -> tuple[Peer, Any] | None:
        """The next message for the program; whatever else comes is dealt with here."""
        while True:
            for worker, seconds in self._expected.silent().items():
                self._give_up(worker, seconds)
            if self._gone:
                worker, left, how = self._gone.popleft()
                self.book.write(Received(self._now, worker, "Leave", clock=left.clock, how=how))
                return Peer("worker", worker), left
            if not self._expected.workers:
                raise _Over
            left_over = _GLANCE if effect.until is None else min(_GLANCE, effect.until - self._now)
            if left_over <= 0 and not self._ticked:
                self._ticked = True
                self.book.write(Ticked(self._now))
                return None
            self.heartbeat.enter("idle")
            parcel = self.socket.receive(max(0.0, left_over))
            self.heartbeat.enter("serving")
            self._ticked = False  # ticks that are overdue must not keep messages out, nor messages ticks
            self._stopping = self._stopping or self._stop_requested()
            if parcel is not None and self._take(parcel):
                return Peer("worker", parcel.sender), parcel.message

    def _take(self, parcel: Envelope) -> bool:
        """Whether a message is for the program; all others are answered."""
        self._stopping = self._stopping or parcel.stop
        worker, message = parcel.sender, parcel.message
        if isinstance(message, MESSAGES):
            clock, version = getattr(message, "clock", -1), getattr(message, "version", -1)
            self._clocks[worker] = max(clock, self._clocks.get(worker, 0))
            self._expected.come(worker)
            self.book.write(Received(self._now, worker, type(message).__name__, clock, version, parcel.depth))
            return True
        match message:
            case Hello():
                self._greet(parcel, message)
            case Goodbye():
                self._let_go(worker, message.clock, message.how)
            case Contribution() if message.op in OPERATIONS:
                self._circle.give(worker, Gift(message.op, message.tensor, message.root))
                self._end_collectives()
            case GetTotals():
                self.book.totals.refused = dict(self.socket.refused)
                self.socket.send(worker, TotalsReply(json.dumps(to_document(self.book.totals))))
            case Document():
                self._circle.give(worker, Gift("words", message.document))
                self._end_collectives()
            case Died():
                self._let_go(message.rank, message.clock, "died")
            case SaveShard():
                self._keep(worker, message.step)
        return False

    def _greet(self, parcel: Envelope, hello: Hello) -> None:
        """Tie a connection to its worker; one without a rank gets one, and hears what is run."""
        if self._finished:
            self.socket.reply(parcel, Refusal(_OVER))
            return
        if hello.rank < 0:
            document = json.dumps({**self._invitation, "now": self._now})
            self.socket.reply(parcel, Welcome(self._expected.reserve(), False, document))
            return
        bound = parcel.sender >= 0
        if parcel.sender != hello.rank if bound else self.socket.knows(hello.rank):
            self.socket.reply(parcel, Refusal(f"rank {hello.rank} is taken"))
            return
        self.socket.bind(parcel, hello.rank)
        shares = self.socket.attach(hello.rank, hello)
        self._expected.come(hello.rank)
        self.socket.send(hello.rank, Welcome(hello.rank, shares, ""), stop=self._stopping)

    def _give_up(self, worker: int, seconds: float) -> None:
        """A worker was silent for too long; it may live all the same, and then hears why."""
        why = f"it was silent for {seconds:.1f} s, and --silence {self._silence:g} allows less; give more to keep it"
        self.socket.send(worker, Refusal(f"{EXPELLED}{why}"))
        if self.me.rank == 0:
            self._say(f"rank {worker} on {self._hosts.get(worker, 'a host of its own')} is given up: {why}")
        self._let_go(worker, self._clocks.get(worker, 0), "died")

    def _let_go(self, worker: int, clock: int, how: str) -> None:
        if worker not in self._expected.workers:
            return
        self._expected.go(worker)
        self._abandoned = self._abandoned and how == "died"
        self.socket.forget(worker)
        self._gone.append((worker, Leave(clock), how))
        self._circle.drop(worker)
        self._end_collectives()
        if how == "finished" and not self._finished:
            self._finished = True
            self._shut_out()

    def _shut_out(self) -> None:
        """The run is over: whoever still waits to be let in came too late."""
        for worker in sorted(self._expected.workers - self._let_in):
            self.socket.send(worker, Refusal(_OVER))
            self._let_go(worker, 0, "left")

    def _end_collectives(self) -> None:
        for outcome in self._circle.whole():
            members = ",".join(map(str, outcome.members))
            message = (
                AllDocuments(json.dumps(outcome.content))
                if isinstance(outcome.content, dict)
                else Result(members, outcome.content)
            )
            for member in outcome.members:
                self.socket.send(member, message, stop=self._stopping)

    def _keep(self, worker: int, step: int) -> None:
        """All workers are quiet and ask alike: the first one's word saves, the others' finds it saved.

        Two meetings may be of the same step; a worker that asks again has come to the next.
        """
        if step != self._saved or worker in self._asked_to_keep:
            self.heartbeat.enter("checkpoint")
            self.book.save(step, self.me, self.part)
            self._saved = step
            self._asked_to_keep.clear()
        self._asked_to_keep.add(worker)
        self.socket.send(worker, ShardSaved(step))


class _Over(Exception):
    """Every worker has gone."""

"""One server's run: real sockets, the job's optimizer on its shard, the wall clock, and the workers' membership."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from paceline.errors import RunFailed
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document
from paceline.records.folder import RunFolder
from paceline.records.lock import RunLock
from paceline.records.servers import (
    Entry,
    Received,
    ServerLog,
    ServerTotals,
    Ticked,
    Updated,
    keep_entries,
    read_server_log,
)
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.server.membership import COLLECTIVES, ElasticCollectives, Membership
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire import messages
from paceline.runtimes.live.wire.encoding import Envelope
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import ParameterShard
from paceline.strategies.base import Server
from paceline.strategies.effects import Apply, Peer, Receive, Send
from paceline.strategies.messages import MESSAGES, Leave

_POLL = 0.1
_OVER = "the run is over"
_NUMBERS = ("version", "seen", "seen_at_sync")


@dataclass(kw_only=True)
class ServerRecords:
    """What a server leaves behind: its log, its totals and its checkpoints."""

    log: ServerLog
    totals: ServerTotals
    entries: int
    """Lines in the log."""
    checkpoints: Checkpoints
    lock: RunLock

    @classmethod
    @contextmanager
    def opened(
        cls,
        folder: RunFolder,
        checkpoints: Checkpoints,
        lock: RunLock,
        shard: ParameterShard,
        me: Server,
        step: int | None,
        say: Callable[[str], None],
    ) -> Iterator["ServerRecords"]:
        """Restore the checkpoint of ``step``, if any, and remove what was recorded after it."""
        path = folder.server_events(me.rank)
        totals, entries = ServerTotals(), 0
        if step is not None:
            tree = checkpoints.load(step, me.rank)
            shard.load(tree["part"])
            for name in _NUMBERS:
                setattr(me, name, tree["server"][name])
            entries = tree["server"]["entries"]
            checkpoints.forget_after(step, me.rank)
        for sentence in keep_entries(path, entries):
            say(sentence)
        if entries:
            for entry in read_server_log(path):
                totals.add(entry)
        with ServerLog(path) as log:
            yield cls(log=log, totals=totals, entries=entries, checkpoints=checkpoints, lock=lock)

    def write(self, entry: Entry) -> None:
        self.entries += 1
        self.log.append(entry)
        self.totals.add(entry)

    def save(self, step: int, me: Server, shard: ParameterShard) -> None:
        """Write a checkpoint; older ones are removed, except those that other servers may need yet."""
        self.lock.check()
        self.log.flush()
        self.checkpoints.make_room(me.rank)
        numbers = {name: getattr(me, name) for name in _NUMBERS} | {"entries": self.entries}
        self.checkpoints.save(step, me.rank, {"part": shard.state(), "server": numbers})


class ServerRun:
    """Carries out the effects of one server's program, and tracks which workers belong to the run."""

    def __init__(
        self,
        task: ProcessTask,
        prepared: Prepared,
        me: Server,
        shard: ParameterShard,
        socket: ServerSocket,
        records: ServerRecords,
        run: dict[str, Any],
        begun: float,
        hosts: Mapping[int, str],
        say: Callable[[str], None],
    ) -> None:
        """``run`` describes the run to a worker that joins; ``begun`` is the run's time so far.

        A worker from which nothing arrives for as long as the options allow is expelled; server 0 reports that with
        ``say``, with its host from ``hosts``.
        """
        self.me, self.shard, self.socket, self.records = me, shard, socket, records
        self.heartbeat, self._stop_requested = task.heartbeat, task.stop_requested
        self._prepared, self._run = prepared, run
        self._silence, self._say, self._hosts = task.options.silence, say, hosts
        workers = prepared.settings.workers
        self._membership = Membership(workers, socket.heard, self._silence)
        self._collectives = ElasticCollectives(range(workers))
        self._left: deque[tuple[int, Leave, str]] = deque()
        self._clocks: dict[int, int] = {}
        self._saved_step = -1
        self._saved_for: set[int] = set()
        self._abandoned = True
        self._finished = False
        self._admitted = set(range(workers))
        self._stopping = self._ticked = False
        self._origin = perf_counter() - begun
        self._do: dict[type, Callable[[Any], Any]] = {
            Receive: self._receive,
            Send: self._send,
            Apply: self._apply,
        }

    def serve(self) -> str:
        """Serve until the last worker is gone; return "abandoned" where all have died, else "budget"."""
        program = self._prepared.strategy.server(self.me)
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
            except _NoWorkersLeft:
                program.close()
                return "abandoned" if self._abandoned else "budget"
            self.me.now = self._now

    @property
    def _now(self) -> float:
        return perf_counter() - self._origin

    def _apply(self, effect: Apply) -> None:
        me, prepared = self.me, self._prepared
        self.shard.apply(prepared.triggers.epoch(prepared.shards.steps_through(me.seen)), effect.rate)
        me.version += 1
        me.seen += sum(gradient.samples for gradient in effect.gradients)
        self.records.write(Updated(self._now, me.version, effect.gradients))
        self.heartbeat.beat(me.version)

    def _send(self, effect: Send) -> None:
        worker = effect.to.rank
        self._admitted.add(worker)
        if self.me.rank == 0 and worker in self._membership.workers:
            self._collectives.add(worker)
        self.socket.send(worker, effect.message, stop=self._stopping)

    def _receive(self, effect: Receive) -> tuple[Peer, Any] | None:
        """The next message for the program; all others are handled here."""
        while True:
            for worker, seconds in self._membership.silent().items():
                self._expel(worker, seconds)
            if self._left:
                worker, leave, how = self._left.popleft()
                self.records.write(Received(self._now, worker, "Leave", clock=leave.clock, how=how))
                return Peer("worker", worker), leave
            if not self._membership.workers:
                raise _NoWorkersLeft
            timeout = _POLL if effect.until is None else min(_POLL, effect.until - self._now)
            if timeout <= 0 and not self._ticked:
                self._ticked = True
                self.records.write(Ticked(self._now))
                return None
            self.heartbeat.enter("idle")
            envelope = self.socket.receive(max(0.0, timeout))
            self.heartbeat.enter("serving")
            self._ticked = False  # ticks that are overdue must not keep messages out, nor messages ticks
            self._stopping = self._stopping or self._stop_requested()
            if envelope is not None and self._is_for_program(envelope):
                return Peer("worker", envelope.sender), envelope.message

    def _is_for_program(self, envelope: Envelope) -> bool:
        """Whether a message is for the program; control messages are answered here."""
        self._stopping = self._stopping or envelope.stop
        worker, message = envelope.sender, envelope.message
        if isinstance(message, MESSAGES):
            clock, version = getattr(message, "clock", -1), getattr(message, "version", -1)
            self._clocks[worker] = max(clock, self._clocks.get(worker, 0))
            self._membership.add(worker)
            kind = type(message).__name__
            self.records.write(Received(self._now, worker, kind, clock, version, envelope.depth))
            return True
        match message:
            case messages.Hello():
                self._admit(envelope, message)
            case messages.Goodbye():
                self._remove(worker, message.clock, message.how)
            case messages.Died():
                self._remove(message.rank, message.clock, "died")
            case messages.Document() | messages.Contribution():
                if isinstance(message, messages.Document) or message.op in COLLECTIVES:
                    self._collectives.contribute(worker, message)
                    self._answer_collectives()
            case messages.GetTotals():
                self.records.totals.refused = dict(self.socket.refused)
                self.socket.send(worker, messages.TotalsReply(json.dumps(to_document(self.records.totals))))
            case messages.SaveShard():
                self._save(worker, message.step)
        return False

    def _admit(self, envelope: Envelope, hello: messages.Hello) -> None:
        """Bind a connection to its worker; one without a rank gets one, and a description of the run."""
        if self._finished:
            self.socket.reply(envelope, messages.Refusal(_OVER))
            return
        if hello.rank < 0:
            document = json.dumps({**self._run, "now": self._now})
            self.socket.reply(envelope, messages.Welcome(self._membership.reserve(), False, document))
            return
        bound = envelope.sender >= 0
        if envelope.sender != hello.rank if bound else self.socket.knows(hello.rank):
            self.socket.reply(envelope, messages.Refusal(f"rank {hello.rank} is taken"))
            return
        self.socket.bind(envelope, hello.rank)
        shares = self.socket.attach(hello.rank, hello)
        self._membership.add(hello.rank)
        self.socket.send(hello.rank, messages.Welcome(hello.rank, shares, ""), stop=self._stopping)

    def _expel(self, worker: int, seconds: float) -> None:
        """Remove a worker that was silent for too long; if it is alive all the same, it is told why."""
        why = f"it was silent for {seconds:.1f} s, longer than the {self._silence:g} s allowed; allow more to keep it"
        self.socket.send(worker, messages.Refusal(f"{messages.EXPELLED}{why}"))
        if self.me.rank == 0:
            self._say(f"rank {worker} on {self._hosts.get(worker, 'a host of its own')} is given up: {why}")
        self._remove(worker, self._clocks.get(worker, 0), "died")

    def _remove(self, worker: int, clock: int, how: str) -> None:
        if worker not in self._membership.workers:
            return
        self._membership.remove(worker)
        self._abandoned = self._abandoned and how == "died"
        self.socket.forget(worker)
        self._left.append((worker, Leave(clock), how))
        self._collectives.remove(worker)
        self._answer_collectives()
        if how == "finished" and not self._finished:
            self._finished = True
            self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """The run is over: workers that wait to be admitted came too late."""
        for worker in sorted(self._membership.workers - self._admitted):
            self.socket.send(worker, messages.Refusal(_OVER))
            self._remove(worker, 0, "left")

    def _answer_collectives(self) -> None:
        for members, result in self._collectives.completed():
            for member in members:
                self.socket.send(member, result, stop=self._stopping)

    def _save(self, worker: int, step: int) -> None:
        """All workers ask for the same step while none sends gradients: the first request saves.

        Two sync points may be of the same step; a worker that asks again has come to the next.
        """
        if step != self._saved_step or worker in self._saved_for:
            self.heartbeat.enter("checkpoint")
            self.records.save(step, self.me, self.shard)
            self._saved_step = step
            self._saved_for.clear()
        self._saved_for.add(worker)
        self.socket.send(worker, messages.ShardSaved(step))


class _NoWorkersLeft(Exception):
    pass

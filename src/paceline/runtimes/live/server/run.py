"""One server's run: real sockets, the job's optimizer on its shard, the wall clock, and the workers' membership."""

import json
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from paceline.errors import RunFailed
from paceline.records import servers
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document
from paceline.records.folder import RunLock
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.server.membership import ElasticCollectives, Membership
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire import messages
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import ParameterShard
from paceline.strategies.base import Server
from paceline.strategies.effects import Apply, Peer, Receive, Send
from paceline.strategies.messages import MESSAGES, Leave

_POLL = 0.1
_OVER = "the run is over"
_NUMBERS = ("version", "seen", "seen_at_sync")


class ServerRecords:
    def __init__(
        self,
        checkpoints: Checkpoints,
        lock: RunLock,
        me: Server,
        shard: ParameterShard,
        step: int | None,
        say: Callable[[str], None],
    ) -> None:
        """Restore the checkpoint of ``step``, if any, and remove what was recorded after it."""
        self._checkpoints, self._lock, self._me, self._shard = checkpoints, lock, me, shard
        self.totals, self._entries = servers.ServerTotals(), 0
        path = checkpoints.folder.server_events(me.rank)
        if step is not None:
            tree = checkpoints.load(step, me.rank)
            shard.load(tree["part"])
            for name in _NUMBERS:
                setattr(me, name, tree["server"][name])
            self._entries = tree["server"]["entries"]
            checkpoints.forget_after(step, me.rank)
        for sentence in servers.keep_entries(path, self._entries):
            say(sentence)
        if self._entries:
            for entry in servers.read_server_log(path):
                self.totals.add(entry)
        self.log = servers.ServerLog(path)

    def write(self, entry: servers.Entry) -> None:
        self._entries += 1
        self.log.append(entry)
        self.totals.add(entry)

    def save(self, step: int) -> None:
        """Write a checkpoint; older ones are removed, except those that other servers may need yet."""
        self._lock.check()
        self.log.flush()
        self._checkpoints.make_room(self._me.rank)
        numbers = {name: getattr(self._me, name) for name in _NUMBERS} | {"entries": self._entries}
        self._checkpoints.save(step, self._me.rank, {"part": self._shard.state(), "server": numbers})


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
        say: Callable[[str], None],
    ) -> None:
        """``run`` is what rank 0 says of the run; a worker that joins is sent it."""
        self.me, self.shard, self.socket, self.records = me, shard, socket, records
        self._task, self._prepared, self._run, self._say = task, prepared, run, say
        self._membership = Membership(task.settings.workers, socket.heard, task.options.silence)
        self._admitted = set(self._membership.workers)
        self._collectives = ElasticCollectives([*self._admitted])
        self._left: deque[tuple[int, int, str]] = deque()
        self._clocks: dict[int, int] = {}
        self._saved_step, self._saved_for = -1, set[int]()
        self._abandoned, self._finished = True, False
        self._stopping = self._ticked = False
        self._origin: float = perf_counter() - run["begun"]

    @property
    def ending(self) -> str:
        """How it ended: "abandoned" where all workers have died, else "budget"."""
        return "abandoned" if self._abandoned else "budget"

    def serve(self) -> None:
        program = self._prepared.strategy.server(self.me)
        answer = None
        while True:
            self.me.now = self._now
            effect = program.send(answer)
            answer = None
            match effect:
                case Receive():
                    try:
                        answer = self._receive(effect)
                    except _NoWorkersLeft:
                        program.close()
                        return
                case Send():
                    self._send(effect)
                case Apply():
                    self._apply(effect)
                case _:
                    raise RunFailed(
                        f"the server's program asks for {type(effect).__name__}, which servers cannot do"
                    )

    @property
    def _now(self) -> float:
        return perf_counter() - self._origin

    def _apply(self, effect: Apply) -> None:
        me, prepared = self.me, self._prepared
        self.shard.apply(prepared.triggers.epoch(prepared.shards.steps_through(me.seen)), effect.rate)
        me.version += 1
        me.seen += sum(gradient.samples for gradient in effect.gradients)
        self.records.write(servers.Updated(self._now, me.version, effect.gradients))
        self._task.heartbeat.beat(me.version)

    def _send(self, effect: Send) -> None:
        worker = effect.to.rank
        self._admitted.add(worker)
        if self.me.rank == 0 and worker in self._membership.workers:
            self._collectives.add(worker)
        self.socket.send(worker, effect.message, stop=self._stopping)

    def _receive(self, effect: Receive) -> tuple[Peer, Any] | None:
        heartbeat = self._task.heartbeat
        while True:
            for worker, seconds in self._membership.silent().items():
                self._expel(worker, seconds)
            if self._left:
                worker, clock, how = self._left.popleft()
                self.records.write(servers.Received(self._now, worker, "Leave", clock=clock, how=how))
                return Peer("worker", worker), Leave(clock)
            if not self._membership.workers:
                raise _NoWorkersLeft
            timeout = _POLL if effect.until is None else min(_POLL, effect.until - self._now)
            if timeout <= 0 and not self._ticked:
                self._ticked = True
                self.records.write(servers.Ticked(self._now))
                return None
            heartbeat.enter("idle")
            envelope = self.socket.receive(max(0.0, timeout))
            heartbeat.enter("serving")
            self._ticked = False  # ticks that are overdue must not keep messages out, nor messages ticks
            self._stopping = self._stopping or self._task.stop_requested()
            if envelope is not None and self._is_for_program(envelope):
                return envelope.sender, envelope.message

    def _is_for_program(self, envelope: Envelope) -> bool:
        """Whether a message is for the program; control messages are answered here."""
        self._stopping = self._stopping or envelope.stop
        worker, message = envelope.sender.rank, envelope.message
        if isinstance(message, MESSAGES):
            clock, version = getattr(message, "clock", -1), getattr(message, "version", -1)
            self._clocks[worker] = max(clock, self._clocks.get(worker, 0))
            self._membership.add(worker)
            kind = type(message).__name__
            self.records.write(servers.Received(self._now, worker, kind, clock, version, envelope.depth))
            return True
        match message:
            case messages.Hello() | messages.RequestRank():
                self.socket.reply(envelope.connection, self._admit(envelope))
            case messages.Goodbye():
                self._remove(message.rank, message.clock, message.how)
            case messages.Contribution():
                self._collectives.contribute(worker, message)
                self._answer_collectives()
            case messages.GetTotals():
                self.records.totals.refused = dict(self.socket.refused)
                self.socket.send(worker, messages.Reply(json.dumps(to_document(self.records.totals))))
            case messages.SaveShard():
                self._save(worker, message.step)
        return False

    def _admit(self, envelope: Envelope) -> messages.Welcome | messages.Refusal:
        hello, sender = envelope.message, envelope.sender.rank
        if self._finished:
            return messages.Refusal(_OVER)
        if isinstance(hello, messages.RequestRank):
            document = json.dumps({**self._run, "now": self._now})
            return messages.Welcome(self._membership.reserve(), document=document)
        if sender != hello.rank and (sender >= 0 or self.socket.heard(hello.rank) is not None):
            return messages.Refusal(f"rank {hello.rank} is taken")
        self._membership.add(hello.rank)
        return messages.Welcome(hello.rank, self.socket.bind(envelope))

    def _expel(self, worker: int, seconds: float) -> None:
        """Remove a worker that was silent for too long; if it is alive all the same, it is told why."""
        allowed = self._task.options.silence
        why = (
            f"it was silent for {seconds:.1f} s, longer than the {allowed:g} s allowed; allow more to keep it"
        )
        self.socket.send(worker, messages.Refusal(f"{messages.EXPELLED}{why}"))
        if self.me.rank == 0:
            hosts = {one["rank"]: one["host"] for one in self._run["workers"]}
            self._say(f"rank {worker} on {hosts.get(worker, 'a host of its own')} is given up: {why}")
        self._remove(worker, self._clocks.get(worker, 0), "died")

    def _remove(self, worker: int, clock: int, how: str) -> None:
        if worker not in self._membership.workers:
            return
        self._membership.workers.discard(worker)
        self._abandoned = self._abandoned and how == "died"
        self.socket.forget(worker)
        self._left.append((worker, clock, how))
        self._collectives.remove(worker)
        self._answer_collectives()
        if how == "finished" and not self._finished:
            self._finished = True
            for late in sorted(self._membership.workers - self._admitted):
                self.socket.send(late, messages.Refusal(_OVER))
                self._remove(late, 0, "left")

    def _answer_collectives(self) -> None:
        for result in self._collectives.completed():
            for member in result.members:
                self.socket.send(member, result, stop=self._stopping)

    def _save(self, worker: int, step: int) -> None:
        """All workers ask for the same step while none sends gradients: the first request saves.

        Two sync points may be of the same step; a worker that asks again has come to the next.
        """
        if step != self._saved_step or worker in self._saved_for:
            self._task.heartbeat.enter("checkpoint")
            self.records.save(step)
            self._saved_step = step
            self._saved_for.clear()
        self._saved_for.add(worker)
        self.socket.send(worker, messages.Reply())


class _NoWorkersLeft(Exception):
    pass

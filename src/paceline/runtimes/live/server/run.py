"""One server of a run: its records, its sockets, the job's optimizer on its shard, and the workers' membership."""

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import reduce
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch

from paceline.codecs.messages import CorruptMessage
from paceline.errors import RunFailed, say_on_stderr
from paceline.jobs.job import Job
from paceline.records import servers
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, RunLock, check_folder_name
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity
from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.addresses import own_address
from paceline.runtimes.live.heartbeat import SilenceWatch
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.timeouts import ATTENDANCE, STARTING
from paceline.runtimes.live.wire import messages
from paceline.runtimes.live.worker.records import check_owner, claim
from paceline.runtimes.live.worker.server_comm import RUN, server_key
from paceline.runtimes.prepare import Prepared, prepare
from paceline.runtimes.replica import ParameterShard
from paceline.runtimes.served_compression import server_messages, slices_of
from paceline.strategies.base import Server
from paceline.strategies.effects import Apply, Peer, Receive, Send
from paceline.strategies.messages import MESSAGES, Leave

_POLL = 0.1
_OVER = "the run is over"
_NUMBERS = ("version", "seen", "seen_at_sync")


class ServerRun:
    def __init__(
        self,
        task: ProcessTask,
        prepared: Prepared[Job],
        shard: ParameterShard,
        socket: ServerSocket,
        checkpoints: Checkpoints,
        lock: RunLock,
        run: dict[str, Any],
    ) -> None:
        """``run`` is what rank 0 says of the run; a worker that joins is sent it."""
        self._task, self._prepared, self._run, self._lock = task, prepared, run, lock
        self.shard, self.socket, self._checkpoints = shard, socket, checkpoints
        self.me = Server(task.info.rank, task.info.servers, shard.params, shard.grad)
        self.me.initial_workers = tuple(range(task.info.workers))
        self._clocks = dict.fromkeys(self.me.initial_workers, 0)
        """The steps of the workers that have not left."""
        self._next_rank = task.info.workers
        self._collectives = ElasticCollectives(self.me.initial_workers)
        self._begun, self._early = False, list[Envelope]()
        """Whether the initial workers train, and who asked to join before: what these do together knows no others."""
        self._watch, self._checked = SilenceWatch(task.options.silence), monotonic()
        # A first message may be late.
        self._first_by = self._checked + max(0.0, STARTING - task.options.silence)
        self._left: deque[tuple[int, int, str]] = deque()
        self._saved_step, self._saved_for = -1, set[int]()
        self._abandoned, self._finished = True, False
        self._stopping = self._ticked = False
        self._origin: float = perf_counter() - run["begun"]
        self._totals, self._entries = servers.ServerTotals(), 0
        self._messages = server_messages(prepared, self.me, shard.layout)
        self._corrupt: Counter[str] = Counter()
        self.log = self._restore(run["step"])

    def _restore(self, step: int | None) -> servers.ServerLog:
        path = self._checkpoints.folder.server_events(self.me.rank)
        if step is not None:
            tree = self._checkpoints.load(step, self.me.rank)
            self.shard.load(tree["part"])
            for name in _NUMBERS:
                setattr(self.me, name, tree["server"][name])
            self._entries = tree["server"]["entries"]
            self._checkpoints.forget_after(step, self.me.rank)
        for sentence in servers.keep_entries(path, self._entries):
            say_on_stderr(sentence)
        if self._entries:
            for entry in servers.read_server_log(path):
                self._totals.add(entry)
        return servers.ServerLog(path)

    def _write(self, entry: servers.Entry) -> None:
        self._entries += 1
        self.log.append(entry)
        self._totals.add(entry)

    @property
    def ending(self) -> str:
        return "abandoned" if self._abandoned else "budget"

    def serve(self) -> None:
        program = self._prepared.strategy.server(self.me)
        answer = None
        while True:
            self.me.now = self._now
            effect = program.send(answer)
            answer = None
            match effect:
                case Receive() if not self._clocks and not self._left:
                    return
                case Receive():
                    answer = self._receive(effect)
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
        self._write(servers.Updated(self._now, me.version, effect.gradients))
        self._task.heartbeat.beat(me.version)

    def _send(self, effect: Send) -> None:
        worker = effect.to.rank
        if worker in self._clocks:
            self._collectives.add(worker)
        message = self._messages.encoded(worker, effect.message)
        if not self.socket.send(worker, message, stop=self._stopping):
            self._messages.forget(worker)  # it does not have what was sent

    def _receive(self, effect: Receive) -> tuple[Peer, Any] | None:
        heartbeat = self._task.heartbeat
        while True:
            self._expel_silent()
            if self._left:
                worker, clock, how = self._left.popleft()
                self._messages.forget(worker)
                self._write(servers.Received(self._now, worker, "Leave", clock=clock, how=how))
                return Peer("worker", worker), Leave(clock)
            timeout = _POLL if effect.until is None else min(_POLL, effect.until - self._now)
            if timeout <= 0 and not self._ticked:
                self._ticked = True
                self._write(servers.Ticked(self._now))
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
            if not self._begun:
                self._begin()
            try:
                envelope.message = self._messages.decoded(worker, message)
            except CorruptMessage:
                self._corrupt["corrupt"] += 1
                return False
            clock, version = getattr(message, "clock", -1), getattr(message, "version", -1)
            self._add(worker, clock)
            kind = type(message).__name__
            self._write(servers.Received(self._now, worker, kind, clock, version, envelope.depth))
            return True
        match message:
            case messages.RequestRank() if not self._begun:
                self._early.append(envelope)
            case messages.Hello() | messages.RequestRank():
                self.socket.reply(envelope.connection, self._admit(envelope))
            case messages.Goodbye():
                self._remove(message.rank, message.clock, message.how)
            case messages.Contribution():
                self._collectives.contribute(worker, message)
                self._answer_collectives()
            case messages.GetTotals():
                self._totals.refused = dict(self.socket.refused + self._corrupt)
                self.socket.send(worker, messages.Reply(json.dumps(to_document(self._totals))))
            case messages.SaveShard():
                self._save(worker, message.step)
        return False

    def _begin(self) -> None:
        self._begun = True
        for envelope in self._early:
            self.socket.reply(envelope.connection, self._admit(envelope))
        self._early.clear()

    def _admit(self, envelope: Envelope) -> messages.Welcome | messages.Refusal:
        hello, sender = envelope.message, envelope.sender.rank
        if self._finished:
            return messages.Refusal(_OVER)
        if isinstance(hello, messages.RequestRank):
            document = json.dumps({**self._run, "now": self._now})
            self._next_rank += 1  # no rank is ever given twice
            return messages.Welcome(self._next_rank - 1, document=document)
        if sender != hello.rank and (sender >= 0 or self.socket.heard(hello.rank) is not None):
            return messages.Refusal(f"rank {hello.rank} is taken")
        self._add(hello.rank)
        return messages.Welcome(hello.rank, self.socket.bind(envelope))

    def _add(self, worker: int, clock: int = 0) -> None:
        self._clocks[worker] = max(clock, self._clocks.get(worker, 0))
        self._next_rank = max(self._next_rank, worker + 1)

    def _expel_silent(self) -> None:
        """Remove workers that are silent for too long; a worker that is still alive gets the reason."""
        if monotonic() - self._checked < ATTENDANCE:
            return
        self._checked, allowed = monotonic(), self._task.options.silence
        heard = {worker: self.socket.heard(worker) or self._first_by for worker in sorted(self._clocks)}
        for worker, seconds in self._watch.silent(heard).items():
            why = f"it was silent for {seconds:.1f} s, longer than the {allowed:g} s allowed; allow more to keep it"
            self.socket.send(worker, messages.Refusal(f"{messages.EXPELLED}{why}"))
            if self.me.rank == 0:
                hosts = {one["rank"]: one["host"] for one in self._run["workers"]}
                say_on_stderr(f"rank {worker} on {hosts.get(worker, 'a host of its own')} was removed: {why}")
            self._remove(worker, self._clocks[worker], "died")

    def _remove(self, worker: int, clock: int, how: str) -> None:
        if self._clocks.pop(worker, None) is None:
            return
        self._abandoned = self._abandoned and how == "died"
        self.socket.forget(worker)
        self._left.append((worker, clock, how))
        self._collectives.remove(worker)
        self._answer_collectives()
        if how == "finished" and not self._finished:
            self._finished = True
            for late in sorted(self._clocks.keys() - self._collectives.members):
                self.socket.send(late, messages.Refusal(_OVER))
                self._remove(late, 0, "left")

    def _answer_collectives(self) -> None:
        for result in self._collectives.completed():
            for member in result.members:
                self.socket.send(member, result, stop=self._stopping)

    def _save(self, worker: int, step: int) -> None:
        """The first of all workers' requests saves; a worker that asks again has reached the next sync point."""
        if step != self._saved_step or worker in self._saved_for:
            self._task.heartbeat.enter("checkpoint")
            self._lock.check()
            self.log.flush()
            self._checkpoints.prune(self.me.rank, room=1)  # but none that other servers may need yet
            numbers = {name: getattr(self.me, name) for name in _NUMBERS} | {"entries": self._entries}
            self._checkpoints.save(step, self.me.rank, {"part": self.shard.state(), "server": numbers})
            self._saved_step = step
            self._saved_for.clear()
        self._saved_for.add(worker)
        self.socket.send(worker, messages.Reply())


class ElasticCollectives:
    """Collectives among the workers, through server 0: they may join and leave, and contribute in the same order."""

    def __init__(self, members: Sequence[int] = ()) -> None:
        self._pending: dict[int, deque[messages.Contribution]] = {member: deque() for member in members}
        self.members = self._pending.keys()

    def add(self, member: int) -> None:
        self._pending.setdefault(member, deque())

    def remove(self, member: int) -> None:
        self._pending.pop(member, None)

    def contribute(self, member: int, contribution: messages.Contribution) -> None:
        if member in self._pending:
            self._pending[member].append(contribution)

    def completed(self) -> list[messages.Result]:
        results = []
        while self._pending and all(self._pending.values()):
            results.append(_combine({one: self._pending[one].popleft() for one in sorted(self._pending)}))
        return results


def _combine(contributions: Mapping[int, messages.Contribution]) -> messages.Result:
    members, (first, *others) = tuple(contributions), contributions.values()
    if any(one.op != first.op for one in others):
        asked = ", ".join(f"rank {rank} {one.op}" for rank, one in contributions.items())
        raise RuntimeError(f"the workers do not agree on what to do together: {asked}")
    if first.op == "gather":
        return messages.Result(members, documents=tuple(one.document for one in contributions.values()))
    if first.op == "broadcast":  # where the root is gone, of the lowest member
        return messages.Result(members, contributions.get(first.root, first).tensor)
    if any(one.tensor.shape != first.tensor.shape for one in others):
        raise RuntimeError("the workers do not agree on what to do together: their tensors differ in length")
    combine_two = torch.add if first.op == "sum" else torch.minimum
    return messages.Result(members, reduce(combine_two, (one.tensor for one in contributions.values())))


def run_server(task: ProcessTask) -> ServerRun:
    info, settings = task.info, task.settings
    prepared = prepare(settings)
    torch.set_num_threads(task.options.threads)
    shard = ParameterShard.of(prepared.job, info.rank, info.servers, settings.seed, torch.device("cpu"))
    return serve(task, prepared, shard, MemberStore(info, timedelta(seconds=task.options.timeout)))


def serve(
    task: ProcessTask,
    prepared: Prepared[Job],
    shard: ParameterShard,
    store: MemberStore,
    kind: type[ServerRun] = ServerRun,
) -> ServerRun:
    info, settings = task.info, task.settings
    slices = slices_of(prepared, shard.layout, shard.params.dtype)
    codec = slices[info.rank] if slices else None
    host = own_address(info.address, info.port) or info.address
    with (
        ServerSocket(store.secret, host, shard.params, info.rank, info.servers, codec) as socket,
        ExitStack() as stack,
    ):
        run = _introduce(store, socket.endpoint, task)
        check_equal([run["asked"], task.asked()])
        folder, identity = _find_folder(task, run)
        task.heartbeat.show(folder.path)
        lock = stack.enter_context(RunLock.share(folder, info.node_rank))
        checkpoints = Checkpoints(folder, identity, settings.keep, "server")
        server = kind(task, prepared, shard, socket, checkpoints, lock, run)
        stack.enter_context(server.log)
        task.before_hard_end(server.log.flush)
        if info.rank == 0 and not settings.job.is_script:
            stack.enter_context(invitation(folder, socket.endpoint, store.secret, info.secret_file))
        server.serve()
        task.heartbeat.enter("finishing")
        lock.check()
        return server


def _introduce(store: MemberStore, endpoint: str, task: ProcessTask) -> dict[str, Any]:
    """Describe this server to the others; return the description of the run, with all servers' endpoints."""
    info = task.info
    mine: dict[str, Any] = {"endpoint": endpoint, "whole": [], "refused": []}
    if task.resume and task.resumed:
        checkpoints = Checkpoints(task.resume, task.resumed, 1, "server")
        mine["whole"], mine["refused"] = checkpoints.valid_steps(info.rank)
    store.set(server_key(info.rank), json.dumps(mine))
    run: dict[str, Any] = json.loads(store.get(RUN))
    servers = store.read([server_key(rank) for rank in range(info.servers)])
    run["endpoints"] = [json.loads(server)["endpoint"] for server in servers]
    run["settings"] = to_document(task.settings)
    return run


def _find_folder(task: ProcessTask, run: dict[str, Any]) -> tuple[RunFolder, RunIdentity]:
    if task.resume and task.resumed:
        check_owner(task.resume, task.resumed)
        return task.resume, task.resumed
    folder = RunFolder(task.runs / check_folder_name(run["name"]))
    identity = new_identity(task.settings, run=run["run"])
    claim(folder, identity, lambda draft: task.describe(draft, identity, run["workers"]))
    return folder, identity


@contextmanager
def invitation(folder: RunFolder, endpoint: str, secret: Secret, file: Path | None) -> Iterator[None]:
    """While the run trains, its folder says how to join it; a secret without a file of the user's is written there."""
    folder.join_secret.unlink(missing_ok=True)  # of a server that was killed
    if file is None:
        file = folder.join_secret
        secret.write(file)
    write_json(folder.join, {"endpoint": endpoint, "secret": str(file.absolute())})
    try:
        yield
    finally:
        folder.join.unlink(missing_ok=True)
        folder.join_secret.unlink(missing_ok=True)

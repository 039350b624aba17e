"""Repeat a recorded run with servers, message by message, to the same parameters."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.costs.stated import GradientTimes
from paceline.errors import RunFailed, UsageError
from paceline.records.folder import RunFolder
from paceline.records.servers import Damaged, Entry, Received, Ticked, Updated, read_server_log
from paceline.records.summary import Observer, Summary
from paceline.runtimes.config import read_config, read_run
from paceline.runtimes.prepare import Prepared, prepare
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.session import Session
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.collectives import VirtualCollectives
from paceline.runtimes.virtual.engine import VirtualEngine
from paceline.runtimes.virtual.node import Node, SimulatedMessage
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import run
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.transport import VirtualTransport, resume_worker
from paceline.strategies.effects import Gradient, Peer, Program, Receive, Send
from paceline.strategies.messages import Leave, message_bytes

INSTANT = Link(bandwidth=1e18, latency=0.0)


class NoCosts:
    """Nothing takes any time of its own: the record says when things happened."""

    steady = False

    def gradient(self, rank: int, samples: int, step: int) -> GradientTimes:  # noqa: ARG002
        return GradientTimes(0.0, 0.0, 0.0)

    def _nothing(self, *_: Any) -> float:
        return 0.0

    apply = evaluate = checkpoint = serve = update = _nothing


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A run with servers as it was recorded."""

    folder: RunFolder
    settings: Settings
    gradients: bool
    threads: int
    initial_workers: tuple[int, ...]
    logs: Mapping[int, Sequence[Entry]]
    """The servers' entries, by rank."""

    @property
    def workers(self) -> int:
        """One more than the highest rank that there was."""
        ranks = [entry.worker for entry in self.logs[0] if isinstance(entry, Received)]
        return max([*ranks, self.settings.workers - 1]) + 1

    @property
    def finished(self) -> set[int]:
        log = self.logs[0]
        return {entry.worker for entry in log if isinstance(entry, Received) and entry.how == "finished"}


def read_recording(folder: RunFolder) -> Recording:
    """Read a run that is to be repeated, or raise a UsageError that says why it cannot be."""
    settings, machinery = read_run(folder)
    if origin := read_config(folder).origin:
        raise UsageError(
            f"{folder.path} cannot be repeated: the run began at a checkpoint of {origin}, and what came before it "
            "was not recorded there; give a run that was recorded from its first step"
        )
    files = folder.server_event_files()
    if not files:
        raise UsageError(
            f"{folder.path} cannot be repeated: the run recorded no messages; give a run of ps, ssp or async of "
            "which every step was kept"
        )
    if missing := set(range(settings.servers)) - set(files):
        raise UsageError(f"{folder.path} cannot be repeated: the log of server {min(missing)} is not there")
    logs = {rank: list(read_server_log(files[rank])) for rank in range(settings.servers)}
    if any(isinstance(entry, Damaged) for log in logs.values() for entry in log):
        raise UsageError(
            f"{folder.path} cannot be repeated: lines of a server's log were damaged when the run resumed, so its "
            "messages are not all known; give a run that was recorded whole"
        )
    if not any(isinstance(entry, Updated) for log in logs.values() for entry in log):
        raise UsageError(
            f"{folder.path} cannot be repeated: the run ended before its first update, so there is nothing to repeat"
        )
    return Recording(
        folder=folder,
        settings=settings,
        gradients=machinery.get("gradients", True),
        threads=machinery.get("threads") or 1,
        initial_workers=_initial_workers(settings, machinery.get("cluster", {})),
        logs=logs,
    )


def _initial_workers(settings: Settings, cluster: Mapping[str, Any]) -> tuple[int, ...]:
    """All workers of a live run; of a simulated one, those whose host had no start of its own."""
    starts = [
        group["host"].get("start", 0.0)
        for group in cluster.get("groups", [])
        for _ in range(group["count"] * group["host"]["workers"])
    ]
    return tuple(rank for rank in range(settings.workers) if not (starts and starts[rank]))


def replay(
    recording: Recording,
    *,
    observer: Observer,
    recorder: SimulationRecorder,
    prepared: Prepared | None = None,
    name: str = "",
    folder: str | None = None,
) -> Summary:
    """Run it again. Raises RunFailed at the first update that is not the recorded one."""
    prepared = prepared or prepare(recording.settings)
    with undisturbed(AllStreams()):
        simulation = Replay(recording, prepared, observer, recorder, name, folder)
        return run(simulation, VirtualEngine(simulation, simulation.make_transport))


class Replay(Simulation):
    """A run whose servers take their messages in the recorded order."""

    def __init__(
        self,
        recording: Recording,
        prepared: Prepared,
        observer: Observer,
        recorder: SimulationRecorder,
        name: str,
        folder: str | None,
    ) -> None:
        self._recording, self._finished = recording, recording.finished
        host = Host(name="replay", link=INSTANT, inside=INSTANT, workers=recording.workers)
        super().__init__(
            recording.settings,
            prepared.job,
            Cluster.of([host]),
            NoCosts(),
            gradients=recording.gradients,
            strategy=prepared.strategy,
            observer=observer,
            recorder=recorder,
            name=name,
            folder=folder,
        )

    def make_transport(self, _: Simulation, collectives: VirtualCollectives) -> "ReplayTransport":
        self._transport = ReplayTransport(self, collectives, self._recording.logs)
        return self._transport

    @property
    def initial_workers(self) -> tuple[int, ...]:
        return self._recording.initial_workers

    def _describe(self) -> str:
        return f"a replay of {self._recording.folder.path}"

    def _stopping(self, rank: int) -> bool:
        """Whether a worker goes to a sync point next, which may be an early one."""
        return self._transport.next_sent(rank) == "Pause"

    def _program(self, session: Session) -> Program:
        """The worker's program, begun anew where the run was resumed; it computes no gradient that was not sent."""
        rank = session.me.rank
        while True:
            program, answer = session.program(), None
            while True:
                try:
                    effect = program.send(answer)
                except StopIteration as end:
                    return end.value
                if type(effect) is Gradient:
                    sent = self._transport.next_sent(rank)
                    if sent == "Join":
                        program.close()
                        break
                    if sent is None and rank in self._finished:
                        return "interrupted"  # it stopped at the last sync point, because it was asked to
                    if sent != "Push":
                        yield Receive()  # no server sends to it any more
                answer = yield effect


@dataclass(slots=True)
class LogReader:
    """What one server recorded, read from the beginning to the end."""

    entries: Sequence[Entry]
    place: int = 0
    present: set[int] = field(default_factory=set)
    """The workers that are there."""
    sent: dict[int, list[str]] = field(default_factory=dict)
    """What each worker sent, kind by kind."""

    def __post_init__(self) -> None:
        for entry in self.entries:
            if isinstance(entry, Received) and entry.kind != "Leave":
                self.sent.setdefault(entry.worker, []).append(entry.kind)

    @property
    def next(self) -> Entry | None:
        """None at the end."""
        return self.entries[self.place] if self.place < len(self.entries) else None

    @property
    def resumes(self) -> bool:
        """Whether a worker joins next that is there already: the run was stopped before, and resumed."""
        entry = self.next
        return isinstance(entry, Received) and entry.kind == "Join" and entry.worker in self.present

    def advance(self) -> None:
        entry = self.next
        if isinstance(entry, Received):
            (self.present.discard if entry.kind == "Leave" else self.present.add)(entry.worker)
        self.place += 1


class ReplayTransport(VirtualTransport):
    """Servers take messages as their logs say; everything else happens as soon as it can.

    A worker sends no more than was recorded: where it would, it waits for ever.
    """

    def __init__(
        self, simulation: Simulation, collectives: VirtualCollectives, logs: Mapping[int, Sequence[Entry]]
    ) -> None:
        super().__init__(simulation, collectives)
        self._logs = {server.peer.rank: LogReader(logs[server.peer.rank]) for server in simulation.servers}
        self._sent: Counter[tuple[int, int]] = Counter()
        self._unread: dict[tuple[int, int], deque[Any]] = {}

    @property
    def pending(self) -> bool:
        return not self.over

    @property
    def over(self) -> bool:
        """Whether every server has taken all that it had recorded."""
        return all(log.next is None for log in self._logs.values())

    def next_sent(self, worker: int) -> str | None:
        """The kind of message that a worker sent to server 0 next in the recorded run; None where it sent no more."""
        sent = self._logs[0].sent.get(worker, [])
        return sent[self._sent[0, worker]] if self._sent[0, worker] < len(sent) else None

    def send(self, node: Node, effect: Send) -> bool:
        """A worker's message is kept until its turn; a server's arrives at once."""
        target = self._receiver(node, effect)
        message, size = self._simulation.compute.copy(effect.message), message_bytes(effect.message)
        node.ledger.moved(size, 0)
        if node.session is None:
            self._answer(
                node,
                target,
                SimulatedMessage(node.peer, message, size, begun=node.me.now, arrived=node.me.now),
            )
            return False
        pair = (target.peer.rank, node.peer.rank)
        if self._sent[pair] >= len(self._logs[pair[0]].sent.get(pair[1], [])):
            node.waits_for = effect
            return True
        self._sent[pair] += 1
        self._unread.setdefault(pair, deque()).append(message)
        return False

    def _answer(self, node: Node, target: Node, envelope: SimulatedMessage) -> None:
        if node.peer.rank == 0:
            self._collectives.admit(target)
        if target.gone:
            return
        target.inbox.append(envelope)
        if type(target.waits_for) is Receive:
            target.waits_for = None
            resume_worker(target, target.inbox.popleft())
            self._ready.append(target)

    def receive(self, node: Node, effect: Receive) -> bool:
        """A worker takes what is there; a server's turn comes when no worker can go on."""
        if node.session is not None and node.inbox:
            resume_worker(node, node.inbox.popleft())
            return False
        node.waits_for = effect
        return True

    def leave(self, node: Node, how: str, now: float) -> None:
        """The record says when the servers were told."""

    def note(self, node: Node, entry: Entry) -> None:
        log = self._logs[node.peer.rank]
        recorded = log.next
        assert isinstance(entry, Updated)
        if not isinstance(recorded, Updated) or (recorded.version, recorded.used) != (
            entry.version,
            entry.used,
        ):
            raise RunFailed(
                f"the replay is not the recorded run: update {entry.version} of {node} was made of "
                f"{_made_of(entry)}, and the record says {_show(recorded)} (entry {log.place + 1})"
            )
        self._keep(node, recorded)

    def _keep(self, node: Node, entry: Entry) -> None:
        self._logs[node.peer.rank].advance()
        super().note(node, entry)

    def proceed(self) -> bool:
        """Let a server take its next message; where none is there, do without the workers that are gone."""
        for can in (self._can_take, self._can_leave):
            for server in self._simulation.servers:
                if type(server.waits_for) is Receive and can(server):
                    self._take(server)
                    return True
        for worker in self._collectives.awaited:
            if self.next_sent(worker.peer.rank) is None:
                self._collectives.remove(worker)
        if not self._ready:
            raise RunFailed(
                f"the replay is not the recorded run: {'; '.join(map(self._missing, self._waiting()))}"
            )
        return True

    def _waiting(self) -> list[Node]:
        return [
            server for server in self._simulation.servers if self._logs[server.peer.rank].next is not None
        ]

    def _missing(self, server: Node) -> str:
        log = self._logs[server.peer.rank]
        return f"{server} recorded {_show(log.next)} next (entry {log.place + 1}), which does not come"

    def _can_take(self, server: Node) -> bool:
        """Whether the next entry is a tick, or a message that has been sent."""
        entry = self._logs[server.peer.rank].next
        if isinstance(entry, Ticked):
            return server.waits_for.until is not None
        if not isinstance(entry, Received) or entry.kind == "Leave":
            return False
        unread = self._unread.get((server.peer.rank, entry.worker))
        return bool(unread) and _is(entry, unread[0])  # type: ignore[index]

    def _can_leave(self, server: Node) -> bool:
        """Whether a worker is gone next; one that finished must have finished here too."""
        entry = self._logs[server.peer.rank].next
        if not isinstance(entry, Received) or entry.kind != "Leave":
            return False
        return entry.how != "finished" or self._simulation.nodes[Peer("worker", entry.worker)].gone

    def _take(self, server: Node) -> None:
        log, me = self._logs[server.peer.rank], server.me
        entry = log.next
        assert isinstance(entry, Received | Ticked)
        me.now, server.waits_for = entry.at, None
        self._ready.append(server)
        if log.resumes:
            self._begin_anew(server, log)
            return
        self._keep(server, entry)
        if isinstance(entry, Ticked):
            server.answer = None
        elif entry.kind == "Leave":
            server.answer = (Peer("worker", entry.worker), Leave(entry.clock))
        else:
            message = self._unread[server.peer.rank, entry.worker].popleft()
            server.answer = (Peer("worker", entry.worker), message)

    def _begin_anew(self, server: Node, log: LogReader) -> None:
        """The run was stopped here and resumed: the server's program began anew, with no worker."""
        log.present.clear()
        server.program.close()
        server.program = self._simulation.strategy.server(server.me)
        server.answer = None
        if server.peer.rank == 0:
            for worker in self._simulation.workers:
                self._collectives.remove(worker)


def _is(entry: Received, message: Any) -> bool:
    if type(message).__name__ != entry.kind:
        return False
    return entry.kind != "Push" or (message.clock, message.version) == (entry.clock, entry.version)


def _show(entry: Entry | None) -> str:
    match entry:
        case Updated():
            return f"update {entry.version} of {_made_of(entry)}"
        case Ticked():
            return "a tick"
        case Received(kind="Push"):
            return f"a Push of worker {entry.worker} at clock {entry.clock} on version {entry.version}"
        case Received():
            return f"{entry.kind} of worker {entry.worker}"
    return "nothing"


def _made_of(entry: Updated) -> str:
    parts = [f"worker {one.worker} at clock {one.clock}, staleness {one.staleness}" for one in entry.used]
    return "; ".join(parts) or "nothing"

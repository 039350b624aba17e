"""Repeat a recorded run with servers, message by message, to the same parameters."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.clusters.cluster import Cluster, Host, Link, StepTimes
from paceline.costs.stated import stated_costs
from paceline.errors import RunFailed, UsageError
from paceline.jobs.job import Job
from paceline.records.folder import RunFolder
from paceline.records.servers import Damaged, Entry, Received, Ticked, Updated, read_server_log
from paceline.records.spans import StepBreakdown
from paceline.records.summary import Summary
from paceline.records.tensors import read_tensors
from paceline.runtimes.config import read_run
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.session import Session
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.collectives import VirtualCollectives
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.simulate import execute
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.transport import SimulatedTransport
from paceline.strategies.effects import Gradient, Peer, Program, Receive, Send
from paceline.strategies.messages import Leave

INSTANT = Link(bandwidth=1e18, latency=0.0)


@dataclass(frozen=True, kw_only=True)
class Recording:
    folder: RunFolder
    settings: Settings
    gradients: bool
    threads: int
    initial_workers: tuple[int, ...]
    logs: Mapping[int, Sequence[Entry]]

    @property
    def workers(self) -> int:
        ranks = [entry.worker for entry in self.logs[0] if isinstance(entry, Received)]
        return max([*ranks, self.settings.workers - 1]) + 1


def read_recording(folder: RunFolder) -> Recording:
    config = read_run(folder)
    settings, machinery = config.settings, config.machinery
    logs = {rank: list(read_server_log(file)) for rank, file in folder.server_event_files().items()}
    kinds = {type(entry) for log in logs.values() for entry in log}
    problem = ""
    if config.origin:
        problem = f"the run began at a checkpoint of {config.origin}"
    elif set(logs) != set(range(settings.servers)):
        problem = f"the run recorded the messages of {len(logs)} servers, not of {settings.servers}"
    elif Damaged in kinds:
        problem = "lines of a server's log were damaged when the run resumed"
    elif Updated not in kinds:
        problem = "the run ended before its first update"
    if problem:
        raise UsageError(
            f"{folder.path} cannot be repeated: {problem}; give a run of ps, ssp or async of which every step was "
            "recorded from the first one on"
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


class ReplayLog:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries, self.place = entries, 0
        self.present: set[int] = set()
        self.unsent: dict[int, deque[str]] = defaultdict(deque)
        """The kinds of messages that each worker has still to send."""
        self.unread: dict[int, deque[Any]] = defaultdict(deque)
        """Messages that each worker has sent and the server has not taken."""
        self.finished: set[int] = set()
        for entry in entries:
            if isinstance(entry, Received) and entry.kind != "Leave":
                self.unsent[entry.worker].append(entry.kind)
            elif isinstance(entry, Received) and entry.how == "finished":
                self.finished.add(entry.worker)

    @property
    def next(self) -> Entry | None:
        return self._entries[self.place] if self.place < len(self._entries) else None

    def next_sent(self, worker: int) -> str | None:
        return self.unsent[worker][0] if self.unsent[worker] else None

    def advance(self) -> None:
        entry = self.next
        if isinstance(entry, Received):
            (self.present.discard if entry.kind == "Leave" else self.present.add)(entry.worker)
        self.place += 1

    def __str__(self) -> str:
        return f"{_show(self.next)} (entry {self.place + 1})"


class ReplayTransport(SimulatedTransport):
    """Servers take messages as their logs say; everything else happens as soon as it can.

    A worker sends no more than was recorded: where it would, it waits for ever.
    """

    def __init__(
        self, logs: Mapping[int, ReplayLog], simulation: Simulation, collectives: VirtualCollectives
    ) -> None:
        super().__init__(simulation, collectives)
        self._logs = logs

    def is_over(self, workers: int) -> bool:  # noqa: ARG002
        return all(log.next is None for log in self._logs.values())

    def send(self, node: Node, effect: Send) -> bool:
        """A worker's message is kept until its turn; a server's arrives at once."""
        target, envelope = self._address(node, effect)
        if node.session is None:
            if node.peer.rank == 0:
                self._collectives.admit(target)
            envelope.begun = envelope.arrived = node.me.now
            self._deliver(target, envelope)
            return False
        log, rank = self._logs[target.peer.rank], node.peer.rank
        if log.next_sent(rank) is None:
            node.waits_for = effect
            return True
        log.unsent[rank].popleft()
        log.unread[rank].append(envelope.message)
        return False

    def receive(self, node: Node, effect: Receive) -> bool:
        if node.session is not None and node.inbox:
            return self._take(node)
        node.waits_for = effect
        return True

    def leave(self, node: Node, how: str, now: float) -> None:
        pass

    def note(self, node: Node, entry: Entry) -> None:
        log = self._logs[node.peer.rank]
        recorded = log.next
        if isinstance(entry, Updated):
            made = entry.version, entry.used
            if not isinstance(recorded, Updated) or (recorded.version, recorded.used) != made:
                raise RunFailed(
                    f"the replay is not the recorded run: update {entry.version} of {node} was made of "
                    f"{_made_of(entry)}, and the record says {log}"
                )
            entry = recorded
        log.advance()
        super().note(node, entry)

    def proceed(self) -> bool:
        """Let a server take its next message; where there is none, go on without the workers that are gone."""
        for can_take in (self._can_receive, self._can_remove):
            for server in self._simulation.servers:
                if type(server.waits_for) is Receive and can_take(server):
                    self._take_recorded(server)
                    return True
        for worker in self._collectives.awaited:
            if self._logs[0].next_sent(worker.peer.rank) is None:
                self._collectives.remove(worker)
        if not self._ready:
            stuck = [f"server {rank} waits for {log}" for rank, log in self._logs.items() if log.next]
            raise RunFailed(f"the replay is not the recorded run: {'; '.join(stuck)}, which never arrives")
        return True

    def _can_receive(self, server: Node) -> bool:
        log = self._logs[server.peer.rank]
        entry = log.next
        if isinstance(entry, Ticked):
            return server.waits_for.until is not None
        if not isinstance(entry, Received) or not log.unread[entry.worker]:
            return False
        message = log.unread[entry.worker][0]
        same = entry.kind != "Push" or (message.clock, message.version) == (entry.clock, entry.version)
        return type(message).__name__ == entry.kind and same

    def _can_remove(self, server: Node) -> bool:
        """Whether a worker is gone next; one that finished must have finished here too."""
        entry = self._logs[server.peer.rank].next
        if not isinstance(entry, Received) or entry.kind != "Leave":
            return False
        return entry.how != "finished" or self._simulation.nodes[Peer("worker", entry.worker)].gone

    def _take_recorded(self, server: Node) -> None:
        log = self._logs[server.peer.rank]
        entry = log.next
        assert isinstance(entry, Received | Ticked)
        server.me.now, server.waits_for, server.answer = entry.at, None, None
        self._ready.append(server)
        if isinstance(entry, Received) and entry.kind == "Join" and entry.worker in log.present:
            self._begin_anew(server, log)
            return
        self.note(server, entry)
        if isinstance(entry, Received):
            leaves = entry.kind == "Leave"
            message = Leave(entry.clock) if leaves else log.unread[entry.worker].popleft()
            server.answer = (
                Peer("worker", entry.worker),
                server.messages.decoded(entry.worker, message),
            )

    def _begin_anew(self, server: Node, log: ReplayLog) -> None:
        """The run was stopped here and resumed: the server's program began anew, with no worker."""
        log.present.clear()
        server.program.close()
        server.program = self._simulation.prepared.strategy.server(server.me)
        if server.peer.rank == 0:
            for worker in self._simulation.workers:
                self._collectives.remove(worker)


def _show(entry: Entry | None) -> str:
    match entry:
        case Updated():
            return f"update {entry.version} of {_made_of(entry)}"
        case Received(kind="Push"):
            return f"a Push of worker {entry.worker} at clock {entry.clock} on version {entry.version}"
        case Received():
            return f"{entry.kind} of worker {entry.worker}"
    return "a tick" if entry else "nothing"


def _made_of(entry: Updated) -> str:
    parts = [f"worker {one.worker} at clock {one.clock}, staleness {one.staleness}" for one in entry.used]
    return "; ".join(parts) or "nothing"


def replay(recording: Recording, prepared: Prepared[Job], **options: Any) -> Summary:
    """Repeat a run; raise RunFailed at the first update that is not the recorded one.

    ``options`` are those of a Simulation: the observer, the recorder and the name.
    """
    host = Host(name="replay", link=INSTANT, inside=INSTANT, workers=recording.workers)
    # Nothing takes any time of its own: the record says when things happened.
    cluster = Cluster.of([host], times=StepTimes(step=StepBreakdown()))
    costs = stated_costs(cluster, (1,) * recording.workers, {})
    logs = {rank: ReplayLog(entries) for rank, entries in recording.logs.items()}
    simulation = Simulation(
        prepared,
        cluster,
        costs,
        gradients=recording.gradients,
        initial_workers=recording.initial_workers,
        transport=f"a replay of {recording.folder.path}",
        program=partial(_repeat, logs[0]),
        **options,
    )
    return execute(simulation, partial(ReplayTransport, logs))


def _repeat(log: ReplayLog, session: Session) -> Program:
    """The worker's program, begun anew where the run was resumed; it computes no gradient that was not sent."""
    rank = session.me.rank
    session.stopping = lambda: log.next_sent(rank) == "Pause"
    while True:
        program, answer = session.program(), None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration as end:
                return end.value
            if type(effect) is Gradient:
                sent = log.next_sent(rank)
                if sent == "Join":
                    program.close()
                    break
                if sent is None and rank in log.finished:
                    return "interrupted"  # it stopped at the last sync point, because it was asked to
                if sent != "Push":
                    yield Receive()  # no server sends to it again
            answer = yield effect


def model_difference(recorded: RunFolder, repeated: RunFolder) -> tuple[float, str]:
    """The largest difference of the exported models, and the tensor that it is in; no name without two models."""
    if not recorded.model.exists() or not repeated.model.exists():
        return 0.0, ""
    one, other = read_tensors(recorded.model), read_tensors(repeated.model)
    return max(
        (float((one[key].double() - other[key].double()).abs().max()) if one[key].numel() else 0.0, key)
        for key in one
    )

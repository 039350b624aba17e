"""Messages in the order that a record gives: what makes of the same programs the same run."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import RunFailed
from paceline.records.servers import Entry, Received, Ticked, Updated
from paceline.runtimes.virtual.circle import VirtualCollectives
from paceline.runtimes.virtual.mail import open_letter
from paceline.runtimes.virtual.node import Delivery, Letter, Node
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies.effects import Peer, Receive, Send
from paceline.strategies.messages import Leave, message_bytes


class Script:
    """What one server recorded, read from the beginning to the end."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries, self.place = entries, 0
        self.present: set[int] = set()
        """The workers that are there."""
        self.said: dict[int, list[str]] = {}
        """What each worker said, kind by kind."""
        for entry in entries:
            if isinstance(entry, Received) and entry.kind != "Leave":
                self.said.setdefault(entry.worker, []).append(entry.kind)

    @property
    def next(self) -> Entry | None:
        """What comes next; nothing at the end."""
        return self._entries[self.place] if self.place < len(self._entries) else None

    @property
    def resumes(self) -> bool:
        """Whether somebody comes next who is there already: the run was stopped before, and goes on from there."""
        entry = self.next
        return isinstance(entry, Received) and entry.kind == "Join" and entry.worker in self.present

    def pass_on(self) -> None:
        """Go on to the next entry."""
        entry = self.next
        if isinstance(entry, Received):
            (self.present.discard if entry.kind == "Leave" else self.present.add)(entry.worker)
        self.place += 1


class RecordMail:
    """Servers take messages as their logs say; everything else happens as soon as it can.

    A worker says no more than was recorded: where it would, it is left standing.
    """

    def __init__(
        self,
        logs: Mapping[int, Sequence[Entry]],
        world: World,
        timeline: Timeline,  # noqa: ARG002
        ready: deque[Node],
        circle: VirtualCollectives,
    ) -> None:
        """``logs`` are the servers' entries by rank; ``ready`` is where nodes are put that may go on."""
        self._world, self._ready, self._circle = world, ready, circle
        self._scripts = {server.peer.rank: Script(logs[server.peer.rank]) for server in world.servers}
        self._sent: Counter[tuple[int, int]] = Counter()
        self._boxes: dict[tuple[int, int], deque[Any]] = {}

    @property
    def pending(self) -> bool:
        """Whether the record goes on."""
        return not self.over

    @property
    def over(self) -> bool:
        """Whether every server has taken all that it had recorded."""
        return all(script.next is None for script in self._scripts.values())

    def next_word(self, worker: int) -> str | None:
        """The kind of message that a worker sent to server 0 after those that it has sent by now."""
        said = self._scripts[0].said.get(worker, [])
        return said[self._sent[0, worker]] if self._sent[0, worker] < len(said) else None

    def send(self, node: Node, effect: Send) -> bool:
        """A worker's message is kept until its turn; a server's arrives at once."""
        target = self._world.addressee(node, effect)
        message, size = self._world.mathematics.copy(effect.message), message_bytes(effect.message)
        node.books.moved(size, 0)
        if node.session is None:
            self._answer(node, target, Letter(node.peer, message, size))
            return False
        line = (target.peer.rank, node.peer.rank)
        if self._sent[line] >= len(self._scripts[line[0]].said.get(line[1], [])):
            node.waits_for = effect
            return True
        self._sent[line] += 1
        self._boxes.setdefault(line, deque()).append(message)
        return False

    def _answer(self, node: Node, target: Node, letter: Letter) -> None:
        if node.peer.rank == 0:
            self._circle.admit(target)
        if target.gone:
            return
        target.inbox.append(Delivery(letter, node.me.now, node.me.now))
        if type(target.waits_for) is Receive:
            target.waits_for = None
            open_letter(target, target.inbox.popleft())
            self._ready.append(target)

    def receive(self, node: Node, effect: Receive) -> bool:
        """A worker takes what is there; a server's turn comes when no worker can go on."""
        if node.session is not None and node.inbox:
            open_letter(node, node.inbox.popleft())
            return False
        node.waits_for = effect
        return True

    def farewell(self, node: Node, how: str, now: float) -> None:
        """The record says when the servers heard of it."""

    def note(self, node: Node, entry: Entry) -> None:
        """An update must be the recorded one."""
        script = self._scripts[node.peer.rank]
        recorded = script.next
        assert isinstance(entry, Updated)
        if not isinstance(recorded, Updated) or (recorded.version, recorded.used) != (
            entry.version,
            entry.used,
        ):
            raise RunFailed(
                f"the replay is not the recorded run: update {entry.version} of {node} was made of "
                f"{_made_of(entry)}, and the record says {_show(recorded)} (entry {script.place + 1})"
            )
        self._keep(node, recorded)

    def _keep(self, node: Node, entry: Entry) -> None:
        self._scripts[node.peer.rank].pass_on()
        node.totals.add(entry)
        if self._world.recorder.detailed:
            self._world.recorder.served(node.peer.rank, entry)

    def proceed(self) -> bool:
        """Let a server take its next message; where none is there, do without those who are gone."""
        for may in (self._can_take, self._can_part):
            for server in self._world.servers:
                if type(server.waits_for) is Receive and may(server):
                    self._take(server)
                    return True
        for worker in self._circle.awaited:
            if self.next_word(worker.peer.rank) is None:
                self._circle.dismiss(worker)
        if not self._ready:
            raise RunFailed(
                f"the replay is not the recorded run: {'; '.join(map(self._missing, self._waiting()))}"
            )
        return True

    def _waiting(self) -> list[Node]:
        return [server for server in self._world.servers if self._scripts[server.peer.rank].next is not None]

    def _missing(self, server: Node) -> str:
        script = self._scripts[server.peer.rank]
        return f"{server} recorded {_show(script.next)} next (entry {script.place + 1}), which does not come"

    def _can_take(self, server: Node) -> bool:
        """Whether the next entry is a tick, or a message that has been sent."""
        entry = self._scripts[server.peer.rank].next
        if isinstance(entry, Ticked):
            return server.waits_for.until is not None
        if not isinstance(entry, Received) or entry.kind == "Leave":
            return False
        box = self._boxes.get((server.peer.rank, entry.worker))
        return box is not None and len(box) > 0 and _is(entry, box[0])

    def _can_part(self, server: Node) -> bool:
        """Whether a worker is gone next; one that finished has to have come so far here too."""
        entry = self._scripts[server.peer.rank].next
        if not isinstance(entry, Received) or entry.kind != "Leave":
            return False
        return entry.how != "finished" or self._world.nodes[Peer("worker", entry.worker)].gone

    def _take(self, server: Node) -> None:
        """Resume a server with its next entry, at the recorded time."""
        script, me = self._scripts[server.peer.rank], server.me
        entry = script.next
        assert isinstance(entry, Received | Ticked)
        me.now, server.waits_for = entry.at, None
        self._ready.append(server)
        if script.resumes:
            self._begin_anew(server, script)
            return
        self._keep(server, entry)
        if isinstance(entry, Ticked):
            server.answer = None
        elif entry.kind == "Leave":
            server.answer = (Peer("worker", entry.worker), Leave(entry.clock))
        else:
            message = self._boxes[server.peer.rank, entry.worker].popleft()
            server.answer = (Peer("worker", entry.worker), message)

    def _begin_anew(self, server: Node, script: Script) -> None:
        """The run was stopped here and resumed: the server's program began anew, with no worker."""
        script.present.clear()
        server.program.close()
        server.program = self._world.strategy.server(server.me)
        server.answer = None
        if server.peer.rank == 0:
            for worker in self._world.workers:
                self._circle.dismiss(worker)


def _is(entry: Received, message: Any) -> bool:
    """Whether a message is the recorded one, as far as the record tells."""
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

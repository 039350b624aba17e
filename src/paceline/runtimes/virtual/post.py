"""Messages between nodes: a line for each sender and receiver, so that theirs keep their order."""

from collections import deque
from collections.abc import Callable
from functools import cache, partial

from paceline.costs.topology import Topology
from paceline.runtimes.virtual.node import Delivery, Letter, Node
from paceline.runtimes.virtual.timeline import Timeline
from paceline.strategies.effects import Peer


class Post:
    """Carries letters through the network; ``deliver`` is told when one has arrived."""

    def __init__(
        self, timeline: Timeline, topology: Topology, deliver: Callable[[Node, Delivery], None]
    ) -> None:
        self._timeline, self._deliver = timeline, deliver
        self._gather, self._spread = cache(topology.to_server), cache(topology.from_server)
        self._lines: dict[tuple[Peer, Peer], deque[Letter]] = {}

    def send(self, now: float, sender: Node, target: Node, letter: Letter) -> None:
        """Hand a letter over; it leaves when those before it have left."""
        line = self._lines.setdefault((sender.peer, target.peer), deque())
        line.append(letter)
        if len(line) == 1:
            self._start(now, sender, target, line)

    def _start(self, now: float, sender: Node, target: Node, line: deque[Letter]) -> None:
        way = (self._spread if sender.session is None else self._gather)(sender.host, target.host)

        def sent(time: float) -> None:
            delivery = Delivery(line.popleft(), now, time + way.latency)
            self._timeline.at(delivery.arrived, partial(self._arrive, target, delivery))
            if line:
                self._start(time, sender, target, line)

        self._timeline.network.start(now, line[0].size, way.crosses, sent)

    def _arrive(self, target: Node, delivery: Delivery, now: float) -> None:  # noqa: ARG002
        self._deliver(target, delivery)

"""Everything that one simulated run consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from paceline.costs.all_reduce import AllReduceCosts
from paceline.costs.base import Costs
from paceline.costs.prices import Pricer, tree_broadcast
from paceline.costs.topology import Topology
from paceline.errors import RunFailed
from paceline.jobs.sharding import Shards
from paceline.records.observer import Observer
from paceline.runtimes.agenda import Triggers
from paceline.runtimes.virtual.mathematics import Compute
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.base import Strategy
from paceline.strategies.effects import Peer, Send


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The nodes, and what they are given: work, links, prices, listeners."""

    workers: Sequence[Node]
    servers: Sequence[Node]
    strategy: Strategy
    shape: JobShape
    shards: Shards
    agenda: Triggers
    topology: Topology
    costs: Costs
    mathematics: Compute
    observer: Observer
    recorder: Recorder
    share_buffers: bool
    """Whether everybody's buffers become rank 0's before each forward."""
    all_reduce: AllReduceCosts
    broadcast: Pricer = tree_broadcast
    horizon: float = inf
    """When the run is over, whoever is in the middle of what."""

    @cached_property
    def nodes(self) -> Mapping[Peer, Node]:
        """Everybody by name."""
        return {node.peer: node for node in (*self.workers, *self.servers)}

    def addressee(self, sender: Node, effect: Send) -> Node:
        """To whom a message goes; a RunFailed names who sends to nobody."""
        target = self.nodes.get(effect.to)
        if target is None:
            raise RunFailed(f"{sender} sends to {effect.to.role} {effect.to.rank}, and there is no such node")
        return target

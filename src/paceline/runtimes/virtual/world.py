"""Everything that one simulated run consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paceline.costs.all_reduce import AllReduceCosts
from paceline.costs.base import Costs
from paceline.costs.prices import Pricer, tree_broadcast
from paceline.costs.topology import Topology
from paceline.jobs.sharding import Shards
from paceline.records.observer import Observer
from paceline.runtimes.agenda import Agenda
from paceline.runtimes.virtual.mathematics import Mathematics
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The nodes, and what they are given: work, links, prices, listeners."""

    workers: Sequence[Node]
    servers: Sequence[Node]
    strategy: Strategy
    shape: JobShape
    shards: Shards
    agenda: Agenda
    topology: Topology
    costs: Costs
    mathematics: Mathematics
    observer: Observer
    recorder: Recorder
    share_buffers: bool
    """Whether everybody's buffers become rank 0's before each forward."""
    all_reduce: AllReduceCosts
    broadcast: Pricer = tree_broadcast
    horizon: float = inf
    """When the run is over, whoever is in the middle of what."""

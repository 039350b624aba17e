"""What a collective costs: stages, one after the other, each a delay and bytes over some links at once.

Alone on the network a price is a number of seconds; among other traffic its stages run as flows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.costs.topology import Topology


@dataclass(frozen=True, slots=True)
class Stage:
    """So many bytes over all of these links in step, the slowest setting the pace, and a delay."""

    latency: float
    size: float
    crosses: Mapping[int, float]
    """Link to how many such flows it carries."""
    seconds: float
    """How long it takes when nothing else is under way."""


@dataclass(frozen=True, slots=True)
class Price:
    """The stages of one collective; none where only its time alone on the network is known."""

    stages: tuple[Stage, ...]
    seconds: float
    """How long it takes when nothing else is under way."""

    def delayed(self, seconds: float) -> "Price":
        """Return the same price with so many seconds before the first byte is sent."""
        stages = self.stages
        if stages:
            first = stages[0]
            longer = replace(first, latency=first.latency + seconds, seconds=first.seconds + seconds)
            stages = (longer, *stages[1:])
        return Price(stages, self.seconds + seconds)


Pricer = Callable[[Topology, int], Price]
"""From the links and the size in bytes to the price of a collective of all workers."""

FREE = Price((), 0.0)


def shared_memory(topology: Topology, size: int) -> Price:
    """Workers of one host who meet, each reduce a share of everybody's tensor in place, and meet again.

    Each reads its share of n - 1 others and writes the result to them: the bytes of a ring, through what they share.
    """
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    (host,) = topology.members
    delay = 2 * topology.hosts[host].inside.latency
    reduce = topology.slowest_reduce * (workers - 1) * size / workers
    shared = {topology.inside(host): workers}
    return price_stages([stage(topology, delay + reduce, 2 * (workers - 1) * size / workers, shared)])


def tree_broadcast(topology: Topology, size: int) -> Price:
    """A binomial tree over the hosts, then one inside each host; in every round those who have it tell one more.

    With h hosts: ceil(log2 h) rounds, each the whole message over the slowest host's link. With k workers on a
    host: ceil(log2 k) delays, and k - 1 copies through the inside link that they share.
    """
    if topology.count == 1 or size == 0:
        return FREE
    members = topology.members
    stages = []
    if topology.inhabited > 1:
        rounds = (topology.inhabited - 1).bit_length()
        latency = max(topology.hosts[host].link.latency for host in members)
        crosses = {link: rounds for host in members for link in (topology.out_of(host), topology.into(host))}
        stages.append(stage(topology, rounds * latency, size, crosses))
    most = max(members.values())
    if most > 1:
        rounds = (most - 1).bit_length()
        latency = max(topology.hosts[host].inside.latency for host in members if members[host] > 1)
        inside = {topology.inside(host): count - 1 for host, count in members.items() if count > 1}
        stages.append(stage(topology, rounds * latency, size, inside))
    return price_stages(stages)


def stage(topology: Topology, latency: float, size: float, crosses: Mapping[int, float]) -> Stage:
    """The stage, with its own time worked out."""
    slowest = max(times / topology.capacities[link] for link, times in crosses.items())
    return Stage(latency, size, dict(crosses), latency + size * slowest)


def price_stages(stages: Sequence[Stage]) -> Price:
    """Stages one after the other."""
    return Price(tuple(stages), sum(one.seconds for one in stages))

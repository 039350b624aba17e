"""What a collective costs: stages, one after the other, each a delay and bytes over some links at once.

Alone on the network a price is a number of seconds; in company its stages run as flows among the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.collectives.pairs import swaps
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


def ring_all_reduce(topology: Topology, size: int) -> Price:
    """As the live runtime does it: shared memory on one host, and across hosts a swap between two or Gloo's ring."""
    return shared_memory(topology, size) if topology.shares_memory else gloo_all_reduce(topology, size)


def gloo_all_reduce(topology: Topology, size: int) -> Price:
    """As the live runtime does it over Gloo: a swap of what is small between two, else Gloo's ring."""
    if size == 0 or not swaps(topology.count, size):
        return gloo_ring(topology, size)
    circle = topology.circle
    reduce = topology.slowest_reduce * size
    return price_stages([stage(topology, circle.latency + reduce, size, circle.crosses)])


def shared_memory(topology: Topology, size: int) -> Price:
    """Workers of one host who meet, each reduce a share of everybody's tensor in place, and meet again.

    Each reads its share of n - 1 others and writes the result to them: the bytes of a ring, through what they share.
    """
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    circle = topology.circle
    reduce = topology.slowest_reduce * (workers - 1) * size / workers
    return price_stages(
        [stage(topology, 2 * circle.latency + reduce, 2 * (workers - 1) * size / workers, circle.crosses)]
    )


def gloo_ring(topology: Topology, size: int) -> Price:
    """A ring through all ranks in order, as Gloo's own all-reduce is.

    2 (n - 1) steps, in each of which a message of 1/n of the bytes goes over every edge at once. The ring leaves and
    enters each host once; the edges inside a host share its inside link. Gloo reduces one piece of a message while
    the next one travels: that takes time only where it is slower.
    """
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    circle = topology.circle
    steps, part = 2 * (workers - 1), size / workers
    reduce = topology.slowest_reduce * part
    carry = stage(topology, 0.0, part, circle.crosses).seconds
    delay = steps * circle.latency + (workers - 1) * max(0.0, reduce - carry)
    return price_stages([stage(topology, delay, steps * part, circle.crosses)])


def ring_all_gather(topology: Topology, size: int) -> Price:
    """Everybody's ``size`` bytes go round a ring through all ranks, until all have all: n - 1 steps."""
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    circle = topology.circle
    steps = workers - 1
    return price_stages([stage(topology, steps * circle.latency, steps * size, circle.crosses)])


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

"""What a collective costs among workers who have only a server in common."""

from collections import Counter
from collections.abc import Sequence

from paceline.costs.prices import FREE, Price, price_stages, stage
from paceline.costs.topology import Topology


def through_server(topology: Topology, workers: Sequence[int], server: int, size: int) -> Price:
    """Everybody's tensor goes to the server, then the result goes to everybody; all given by their hosts.

    The server's link carries as many tensors as there are workers, each way: for small tensors, which is what workers
    exchange where they meet, the two delays are what counts.
    """
    if not size:
        return FREE
    there = [topology.to_server(host, server) for host in workers]
    back = [topology.from_server(server, host) for host in workers]
    stages = []
    for ways in (there, back):
        crosses: Counter[int] = Counter()
        for way in ways:
            crosses.update(way.crosses)
        stages.append(stage(topology, max(way.latency for way in ways), size, crosses))
    return price_stages(stages)

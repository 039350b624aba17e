"""``paceline.price_all_reduce``: how long one all-reduce takes, by itself."""

from math import inf

from paceline.api.arguments import naming_arguments
from paceline.clusters.cluster import Cluster
from paceline.errors import ArgumentError
from paceline.units import parse_bytes


@naming_arguments
def price_all_reduce(schedule: str, size: str | float, *, cluster: str | Cluster, element: int = 4) -> float:
    """Price one all-reduce among all workers of a cluster, in seconds.

    Args:
        schedule: "ring", "tree", ..., or one of your own by import path.
        size: Of the tensor: "44.7 MB", or bytes.
        cluster: A .toml file or "hosts=8,bandwidth=10 Gbit/s,latency=50 us,reduce=8 GB/s".
        element: Bytes of one element.
    """
    from paceline.clusters.description import read_cluster
    from paceline.costs.collectives import AllReduceCosts
    from paceline.costs.topology import Topology

    there = cluster if isinstance(cluster, Cluster) else read_cluster(cluster)
    many = parse_bytes(size) if isinstance(size, str) else size
    if not 0 <= many < inf:
        raise ArgumentError("{size} is not a number of bytes: give one from 0, or '44.7 MB'", size=size)
    if element < 1:
        raise ArgumentError("{element} is too small: an element has at least 1 byte", element=element)
    return AllReduceCosts(schedule, Topology(there)).price(size=int(many), element=element).seconds

"""Prices of collectives on clusters of equal hosts, for tests."""

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, HostGroup, Link
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.topology import Topology


def uniform_cluster(
    hosts: int, link: Link, *, per_host: int = 1, inside: Link = MEMORY, reduce_seconds: float = 0.0
) -> Cluster:
    """Equal hosts: alpha and 1 / beta of the links, and gamma, the seconds a byte to reduce."""
    device = Device(reduce_seconds=reduce_seconds)
    host = Host(name="host", link=link, workers=per_host, inside=inside, device=device)
    return Cluster(groups=(HostGroup(host, hosts),))


def predict_all_reduce(collective: str, cluster: Cluster, size: int, element: int = 4) -> float:
    return AllReduceCosts(collective, Topology(cluster)).price(size, element).seconds

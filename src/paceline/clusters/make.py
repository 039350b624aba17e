"""Clusters of hosts that are all alike, of any size."""

from paceline.clusters.catalogue import NetworkSheet
from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.errors import Mistake

MOST_WORKERS = 1_000_000


def make_cluster(
    workers: int,
    *,
    network: NetworkSheet,
    device: Device = Device(),  # noqa: B008
    per_host: int = 1,
    inside: NetworkSheet | None = None,
) -> Cluster:
    """As many hosts as it takes, ``per_host`` workers on each; the last one may be partly used.

    ``inside`` connects the workers of a host; None is what the processes of a small machine have.
    """
    for what, count in (("workers", workers), ("workers a host", per_host)):
        if not 1 <= count <= MOST_WORKERS:
            raise Mistake(f"{count} {what} are out of range: it must be 1 to {MOST_WORKERS:,}")
    link = Link.of(network)

    def host(size: int) -> Host:
        within = Link.of(inside, size) if inside else MEMORY
        return Host(name="host-0", link=link, workers=size, device=device, inside=within)

    whole, rest = divmod(workers, per_host)
    full = host(per_host)
    hosts = [_twin(full, index) for index in range(whole)]
    return Cluster(hosts=(*hosts, *([_twin(host(rest), whole)] if rest else [])))


def _twin(host: Host, index: int) -> Host:
    """The same host by another name; not made anew, because checking each of a hundred thousand takes its time."""
    twin = object.__new__(Host)
    vars(twin).update(vars(host), name=f"host-{index}")
    return twin

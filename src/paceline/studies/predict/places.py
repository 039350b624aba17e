"""Where the workers stand, for any number of them, and with links that are better or worse than they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, HostGroup, Link
from paceline.studies.predict.base import Where
from paceline.studies.predict.model import Case, Quality
from paceline.studies.predict.prediction import Wire
from paceline.studies.predict.question import MOST_WORKERS


@dataclass(frozen=True)
class SyncPattern:
    """How workers meet, where it matters to the machine that they share."""

    served: bool = False
    """Through servers, rather than each other."""
    apart: float = 0.0
    """Seconds that a worker computes alone in between."""


class Place(Protocol):
    """Hosts and links."""

    @property
    def most(self) -> int:
        """The largest number of workers that there is room for."""

    def cluster(self, workers: int, meeting: SyncPattern) -> Cluster:
        """The first so many workers."""

    def hosts(self, workers: int) -> int:
        """How many hosts these stand on."""


class Alike:
    """As many hosts as it takes, all alike, each with so many workers; the last one may be partly used."""

    def __init__(
        self,
        *,
        link: Link,
        per_host: int = 1,
        most: int = MOST_WORKERS,
        inside: Callable[[int], Link] = lambda workers: MEMORY,  # noqa: ARG005
        device: Device = Device(),  # noqa: B008
        contention: tuple[float, ...] = (),
    ) -> None:
        """``inside`` is what so many workers of a host share; ``contention`` is as a host has it."""
        self.most = most
        self._link, self._per_host, self._inside = link, per_host, inside
        self._device, self._contention = device, contention

    def hosts(self, workers: int) -> int:
        """The last one may be partly used."""
        return -(-workers // self._per_host)

    def cluster(self, workers: int, meeting: SyncPattern = SyncPattern()) -> Cluster:  # noqa: ARG002, B008
        whole, rest = divmod(workers, self._per_host)
        full = HostGroup(self._host("host" if whole > 1 else "host-0", self._per_host), whole)
        last = HostGroup(self._host(f"host-{whole}", rest))
        return Cluster(groups=tuple(group for group in (full, last) if group.workers))

    def _host(self, name: str, workers: int) -> Host:
        return Host(
            name=name,
            link=self._link,
            workers=workers,
            device=self._device,
            inside=self._inside(workers),
            contention=self._contention,
        )


class Described:
    """A cluster that somebody described: its first workers, and all places for servers where there are any."""

    def __init__(self, cluster: Cluster) -> None:
        self.whole = cluster
        self.most = cluster.workers

    def hosts(self, workers: int) -> int:
        """Those with workers among the first so many."""
        return sum(group.count for group in self.cluster(workers).groups if group.workers)

    def cluster(self, workers: int, meeting: SyncPattern = SyncPattern()) -> Cluster:  # noqa: B008
        """Hosts in their order, the last one partly used; what only keeps servers is no part of it without them."""
        kept: list[HostGroup] = []
        left = workers
        for group in self.whole.groups:
            full, rest = divmod(left, group.host.workers) if group.host.workers else (group.count, 0)
            full = min(full, group.count)
            cuts = (0, full, min(full + 1, group.count), group.count)
            for (start, stop), each in zip(pairwise(cuts), (group.host.workers, rest, 0), strict=True):
                if stop > start and (each or (meeting.served and group.host.servers)):
                    part = group.part(start, stop)
                    kept.append(replace(part, host=replace(part.host, workers=each)))
            left = max(0, left - group.workers)
        return replace(self.whole, groups=tuple(kept))


def changed(cluster: Cluster, case: Case) -> Cluster:
    """The cluster with links as much better or worse as the case says."""
    if case == case.as_described:
        return cluster

    def better(link: Link, than: Quality) -> Link:
        return Link(
            bandwidth=link.bandwidth * than.bandwidth / case.links,
            latency=link.latency * than.latency * case.links,
        )

    def changed_host(host: Host) -> Host:
        return replace(host, link=better(host.link, case.network), inside=better(host.inside, case.inside))

    return cluster.map_hosts(changed_host)


@dataclass(frozen=True, kw_only=True)
class LinkNames:
    """What people call the links of a place."""

    network: str = ""
    inside: str = ""
    own: bool = False
    """Whether every worker has a link inside the host of its own: what the host has is the sum of them."""

    def wire(self, cluster: Cluster, where: Where) -> Wire:
        """The slowest such link of a cluster, as 'paceline networks' has it."""
        if where == "network":
            links = [group.host.link for group in cluster.groups]
            shares = [1] * len(links)
        else:
            hosts = [group.host for group in cluster.groups if group.workers]
            links = [host.inside for host in hosts]
            shares = [host.workers if self.own else 1 for host in hosts]
        rates = (link.bandwidth / share for link, share in zip(links, shares, strict=True))
        return Wire(
            where=where,
            name=getattr(self, where),
            bandwidth=min(rates),
            latency=max(link.latency for link in links),
        )

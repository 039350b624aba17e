"""Where the workers stand, for any number of them, and with links that are better or worse than they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.studies.predict.model import Case
from paceline.studies.predict.question import MOST_WORKERS


@dataclass(frozen=True)
class Meeting:
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

    def cluster(self, workers: int, meeting: Meeting) -> Cluster:
        """The first so many workers."""

    def hosts(self, workers: int) -> int:
        """How many hosts these stand on."""


class Alike:
    """As many hosts as it takes, all alike, each with so many workers; the last one may be partly used."""

    most = MOST_WORKERS

    def __init__(
        self,
        *,
        link: Link,
        per_host: int = 1,
        inside: Callable[[int], Link] = lambda workers: MEMORY,  # noqa: ARG005
        device: Device = Device(),  # noqa: B008
        company: tuple[float, ...] = (),
    ) -> None:
        """``inside`` is what so many workers of a host share; ``company`` is as a host has it."""
        self._link, self._per_host, self._inside = link, per_host, inside
        self._device, self._company = device, company
        self._full: list[Host] = []

    def hosts(self, workers: int) -> int:
        """The last one may be partly used."""
        return -(-workers // self._per_host)

    def cluster(self, workers: int, meeting: Meeting = Meeting()) -> Cluster:  # noqa: ARG002, B008
        """Hosts that were made already are not made again: a hundred thousand take their time."""
        whole, rest = divmod(workers, self._per_host)
        if len(self._full) < whole:
            one = self._host(self._per_host)
            more = range(len(self._full), whole)
            self._full += [_copied(one, name=f"host-{index}") for index in more]
        last = [_copied(self._host(rest), name=f"host-{whole}")] if rest else []
        return Cluster(hosts=(*self._full[:whole], *last))

    def _host(self, workers: int) -> Host:
        return Host(
            name="host",
            link=self._link,
            workers=workers,
            device=self._device,
            inside=self._inside(workers),
            company=self._company,
        )


class Described:
    """A cluster that somebody described: its first workers, and all places for servers where there are any."""

    def __init__(self, cluster: Cluster) -> None:
        self.whole = cluster
        self.most = cluster.workers

    def hosts(self, workers: int) -> int:
        """Those with workers among the first so many."""
        return sum(1 for host in self.cluster(workers).hosts if host.workers)

    def cluster(self, workers: int, meeting: Meeting = Meeting()) -> Cluster:  # noqa: B008
        """Hosts in their order, the last one partly used; what only keeps servers is no part of it without them."""
        kept, left = [], workers
        for host in self.whole.hosts:
            taken = min(left, host.workers)
            if taken or (meeting.served and host.servers):
                kept.append(replace(host, workers=taken))
            left -= taken
        return replace(self.whole, hosts=tuple(kept))


def changed(cluster: Cluster, case: Case) -> Cluster:
    """The cluster with links as much better or worse as the case says."""
    if case == case.as_described:
        return cluster
    several = len(cluster.hosts) > 1
    return replace(cluster, hosts=tuple(changed_host(host, case, several) for host in cluster.hosts))


def changed_host(host: Host, case: Case, several: bool) -> Host:
    """One host of several, or the only one, with such links."""
    named, other = (case.bandwidth, case.latency), (1.0, 1.0)

    def better(link: Link, more: float, longer: float) -> Link:
        return Link(bandwidth=link.bandwidth * more / case.links, latency=link.latency * longer * case.links)

    return _copied(
        host,
        link=better(host.link, *(named if several else other)),
        inside=better(host.inside, *(other if several else named)),
    )


def _copied(host: Host, **settings: object) -> Host:
    """A copy without the checks, which the host has passed: ten times as quick, and there may be 100,000."""
    copy = object.__new__(Host)
    vars(copy).update(vars(host), **settings)
    return copy


def network_bandwidth(cluster: Cluster) -> float:
    """Bytes a second of the slowest link between hosts, or of what is inside where there is one host only."""
    if len(cluster.hosts) == 1:
        return cluster.hosts[0].inside.bandwidth
    return min(host.link.bandwidth for host in cluster.hosts)

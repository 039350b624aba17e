"""Where the workers stand, for any number of them, and with links that are better or worse than they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
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
        company: tuple[float, ...] = (),
    ) -> None:
        """``inside`` is what so many workers of a host share; ``company`` is as a host has it."""
        self.most = most
        self._link, self._per_host, self._inside = link, per_host, inside
        self._device, self._company = device, company
        self._full: list[Host] = []

    def hosts(self, workers: int) -> int:
        """The last one may be partly used."""
        return -(-workers // self._per_host)

    def cluster(self, workers: int, meeting: SyncPattern = SyncPattern()) -> Cluster:  # noqa: ARG002, B008
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

    def cluster(self, workers: int, meeting: SyncPattern = SyncPattern()) -> Cluster:  # noqa: B008
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
    return replace(cluster, hosts=tuple(changed_host(host, case) for host in cluster.hosts))


def changed_host(host: Host, case: Case) -> Host:
    """One host with such links."""

    def better(link: Link, than: Quality) -> Link:
        return Link(
            bandwidth=link.bandwidth * than.bandwidth / case.links,
            latency=link.latency * than.latency * case.links,
        )

    return _copied(
        host,
        link=better(host.link, case.network),
        inside=better(host.inside, case.inside),
    )


def _copied(host: Host, **settings: object) -> Host:
    """A copy without the checks, which the host has passed: ten times as quick, and there may be 100,000."""
    copy = object.__new__(Host)
    vars(copy).update(vars(host), **settings)
    return copy


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
            links = [host.link for host in cluster.hosts]
            shares = [1] * len(links)
        else:
            hosts = [host for host in cluster.hosts if host.workers]
            links = [host.inside for host in hosts]
            shares = [host.workers if self.own else 1 for host in hosts]
        rates = (link.bandwidth / share for link, share in zip(links, shares, strict=True))
        return Wire(
            where=where,
            name=getattr(self, where),
            bandwidth=min(rates),
            latency=max(link.latency for link in links),
        )

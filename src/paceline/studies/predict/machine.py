"""Workers on the machine that was measured, or on several like it."""

from functools import cache

from paceline.clusters.cluster import MEMORY, Backend, Cluster, Host, Link
from paceline.clusters.profile import LinkFit, Profile
from paceline.studies.predict.places import Alike, SyncPattern
from paceline.studies.predict.question import MOST_WORKERS

MOST_HERE = 256
"""Workers of one machine: nobody has measured that many, and no factor holds so far."""
_AVERAGED = ("memory", "loopback")


class Machine:
    """One host: workers talk through its memory, with servers by messages, and contend for its cores."""

    def __init__(self, profile: Profile, backend: Backend = "shm", most: int = MOST_HERE) -> None:
        """``most`` is how many workers it has cores for, or was measured with."""
        self._profile, self._backend, self.most = profile, backend, most

    def hosts(self, workers: int) -> int:  # noqa: ARG002
        """The machine itself."""
        return 1

    def cluster(self, workers: int, meeting: SyncPattern) -> Cluster:
        """The machine with so many workers, as far as it was measured with as many."""
        link = _link(self.fit(workers, meeting.served))
        contention = self._profile.contention_between(meeting.apart)
        host = Host(
            name=self._profile.name,
            link=link,
            inside=link,
            workers=workers,
            contention=contention,
            backend=self._backend,
        )
        return Cluster.of([host])

    def fit(self, workers: int, served: bool) -> LinkFit | None:
        """What was measured of the way that these workers talk; the nearest to it where that was not."""
        names = _AVERAGED if self._backend == "shm" else _AVERAGED[::-1]
        return _measured(self._profile, ("messages", *names) if served else names, workers)


class Machines:
    """As many hosts like the measured one as it takes, each with so many workers, on the network that was measured."""

    most = MOST_WORKERS

    def __init__(self, profile: Profile, per_host: int = 1) -> None:
        self._profile, self._per_host = profile, per_host
        self._alike = cache(self._alike_with)

    def hosts(self, workers: int) -> int:
        """The last one may be partly used."""
        return -(-workers // self._per_host)

    def cluster(self, workers: int, meeting: SyncPattern) -> Cluster:
        """The links as measured with as many workers, or with the number next to it."""
        fit = self.fit(workers, meeting.served)
        inside = _link(_measured(self._profile, _AVERAGED, self._per_host))
        alike = self._alike(_link(fit), inside, self._profile.contention_between(meeting.apart))
        return alike.cluster(workers)

    def fit(self, workers: int, served: bool) -> LinkFit | None:
        """What was measured of the network among so many workers; None where it was not."""
        return _measured(self._profile, ("wire", "network") if served else ("network",), workers)

    def _alike_with(self, link: Link, inside: Link, contention: tuple[float, ...]) -> Alike:
        return Alike(link=link, per_host=self._per_host, inside=lambda _: inside, contention=contention)


def _measured(profile: Profile, names: tuple[str, ...], workers: int) -> LinkFit | None:
    """The first of these links that there is."""
    found = (profile.link(name, workers) for name in names)
    return next((fit for fit in found if fit is not None), None)


def _link(fit: LinkFit | None) -> Link:
    return MEMORY if fit is None else Link(bandwidth=fit.bandwidth, latency=fit.latency)

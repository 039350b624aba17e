"""Workers who share the machine that was measured."""

from paceline.clusters.cluster import MEMORY, Cluster, Host, Link
from paceline.clusters.profile import LinkFit, Profile
from paceline.studies.predict.places import Meeting

MOST_HERE = 256
"""Workers of one machine: nobody has measured that many, and no factor holds so far."""


class Machine:
    """One host: workers talk through its memory, with servers by messages, and compute in company."""

    most = MOST_HERE

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def hosts(self, workers: int) -> int:  # noqa: ARG002
        """The machine itself."""
        return 1

    def cluster(self, workers: int, meeting: Meeting) -> Cluster:
        """The machine with so many workers, as far as it was measured with as many."""
        fit = self.fit(workers, meeting.served)
        link = MEMORY if fit is None else Link(bandwidth=fit.bandwidth, latency=fit.latency)
        company = self._profile.company_between(meeting.apart)
        return Cluster(
            hosts=(Host(name=self._profile.name, link=link, inside=link, workers=workers, company=company),)
        )

    def fit(self, workers: int, served: bool) -> LinkFit | None:
        """What was measured of the way that these workers talk; the nearest to it where that was not."""
        names = ("messages", "loopback", "memory") if served else ("memory", "loopback")
        found = (self._profile.link(name, workers) for name in names)
        return next((fit for fit in found if fit is not None), None)

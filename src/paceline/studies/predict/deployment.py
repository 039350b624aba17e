"""Where the workers are, for any number of them: hosts of the catalogue, a described cluster, or measured machines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paceline.clusters.catalogue import find_device, find_network
from paceline.clusters.cluster import CIPHER, MEMORY, Backend, Cluster, Host, HostGroup, Link, StepTimes
from paceline.clusters.description import read_cluster
from paceline.clusters.profile import INSIDE, LinkFit, Profile
from paceline.costs.recorded import check_alone
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.threads import HostCapacity
from paceline.studies.predict.compute import sheet_words
from paceline.studies.predict.prediction import LimitingLink, Where
from paceline.studies.predict.request import MOST_WORKERS, USUAL_NETWORK, PredictRequest
from paceline.units import show_rate, show_seconds

SHEET_SPREAD = 0.2
"""Of links that were not measured, as the logarithm's standard deviation: software reaches 0.7 to 0.95 of most."""
OLD_INSIDE = "pcie3-x16"
"""Of GPUs whose sheet names no link: all are older than PCIe 4."""
MEASURED = "measured"
MOST_HERE = 256
"""The most workers of one machine for which a contention estimate is used."""
AVERAGED: Mapping[Backend, tuple[str, ...]] = {"shm": ("memory", "loopback"), "gloo": ("loopback", "memory")}
"""The links that all-reduces inside a machine go through, or else the nearest to it that was measured."""

ClusterLayout = Callable[[int, bool, float], Cluster]
"""The hosts for a number of workers, whether they exchange with servers, and the seconds they compute in between."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    layout: ClusterLayout
    most: int
    words: str
    network: str = ""
    inside: str = ""
    own_links: bool = False
    """Whether every worker has a link inside the host of its own: what the host has is the sum of them."""
    spread: float = SHEET_SPREAD
    jitter: float = 0.0
    described: Cluster | None = None
    by_catalogue: bool = False

    def hosts(self, workers: int) -> int:
        return sum(group.count for group in self.layout(workers, False, 0.0).groups if group.workers)

    def wire(self, cluster: Cluster, where: Where) -> LimitingLink:
        """The slowest such link of a cluster, as 'paceline networks' shows it."""
        hosts = [group.host for group in cluster.groups if group.workers or where == "network"]
        links = [host.link if where == "network" else host.inside for host in hosts]
        shared = [host.workers if self.own_links and where == "inside" else 1 for host in hosts]
        return LimitingLink(
            where=where,
            name=getattr(self, where),
            bandwidth=min(link.bandwidth / many for link, many in zip(links, shared, strict=True)),
            latency=max(link.latency for link in links),
        )


def find_deployment(request: PredictRequest, profile: Profile | None) -> Deployment:
    """By a cluster's description, by the profile's links, or by the catalogue's; hosts have room for their workers."""
    capacity = _find_capacity(request, profile)
    if capacity is not None and request.per_host is not None:
        capacity.check(request.per_host, f"{request.per_host} workers per host")
    measured = profile is not None and request.network is None and profile.links
    if request.cluster is not None:
        deployment = _described(request, request.cluster, capacity)
    elif measured or request.network == MEASURED:
        deployment = _measured(request, profile, capacity)
    else:
        deployment = _by_catalogue(request, profile)
    if not request.served:
        return deployment
    cipher = profile.cipher if profile else None
    offered = deployment.described and any(group.host.servers for group in deployment.described.groups)
    where = "the hosts that offer places" if offered else "the workers' hosts, from the first one on"
    words = (
        f"{deployment.words}; servers are on {where}; messages to other hosts are encrypted, at "
        f"{show_rate(cipher or CIPHER)} per process ({'measured' if cipher else 'assumed'})"
    )
    return replace(deployment, words=words)


def _find_capacity(request: PredictRequest, profile: Profile | None) -> HostCapacity | None:
    there = None if profile is None else HostCapacity.of_profile(profile)
    if request.times is None:
        return there
    check_alone(RunFolder(request.times))
    run = HostCapacity.of_run(RunFolder(request.times))
    if run is None or there is None:
        return run or there
    return replace(run, measured=there.measured) if run.threads == there.threads else run


def _described(request: PredictRequest, text: str, capacity: HostCapacity | None) -> Deployment:
    cluster = read_cluster(text)
    if capacity is not None:
        capacity.check_hosts(cluster, f"cluster {text}")
    if replace(cluster.times, jitter=0.0, serve=0.0, aggregate=0.0) != StepTimes():
        raise UsageError(
            f"cluster {text} states how long a step takes; leave that out, or use 'paceline simulate'"
        )
    for group in cluster.groups:
        name, device = group.name(0), group.host.device
        if settings := ", ".join(group.host.churn):
            raise UsageError(
                f"workers of host {name!r} join or leave ({settings}); leave it out or use 'paceline simulate'"
            )
        if group.workers and device.sheet and (request.profile or request.times):
            raise UsageError(f"{name} has device {device.name!r}, and another was measured; state a speed")
    return Deployment(
        layout=partial(first_workers, cluster),
        most=cluster.workers,
        words=f"as {cluster.name} describes them: {cluster}",
        jitter=cluster.times.jitter,
        described=cluster,
    )


def first_workers(cluster: Cluster, workers: int, served: bool, apart: float = 0.0) -> Cluster:  # noqa: ARG001
    """Hosts of a described cluster in their order, the last one partly used; those of servers where they are used."""
    kept, left = [], workers
    for host in cluster.hosts:
        taken = min(left, host.workers)
        if taken or (served and host.servers):
            kept.append(replace(host, workers=taken))
        left -= taken
    return cluster.with_hosts(tuple(kept))


def _measured(request: PredictRequest, profile: Profile | None, capacity: HostCapacity | None) -> Deployment:
    if profile is None:
        raise UsageError(f"network {MEASURED} is that of a profile; give a profile, or name a network")
    apart = request.network == MEASURED or not any(link.name in INSIDE for link in profile.links)
    for setting, value in (("inside", request.inside), ("per host", None if apart else request.per_host)):
        if value is not None:
            raise UsageError(
                f"{setting} {value}: without a network, all workers are on one machine; name one or leave it out"
            )
    if capacity is not None and request.workers is not None and not apart:
        capacity.check(max(request.workers), f"{max(request.workers)} workers")
    backend = request.backend or "shm"
    names = ("network",) if apart else AVERAGED[backend]
    fit = _first_fit(profile, names, 2)
    if fit is None:
        raise UsageError(
            f"profile {profile.name!r} has no network; name one, such as 10gbit, or 'paceline calibrate links'"
        )
    here = MOST_HERE if capacity is None else capacity.workers
    return Deployment(
        layout=partial(equal_machines, profile, request.per_host or 1)
        if apart
        else partial(one_machine, profile, backend),
        most=MOST_WORKERS if apart else here,
        words=f"{fit.name} of {profile.name} as measured, {_figures(fit)}",
        network="as measured" if apart else "",
        inside="" if apart else "as measured",
        spread=fit.spread,
    )


def _figures(fit: LinkFit) -> str:
    carries = f"{show_rate(fit.bandwidth)}, " if fit.has_bandwidth else ""
    return f"{carries}{show_seconds(fit.latency)}"


def one_machine(profile: Profile, backend: Backend, workers: int, served: bool, apart: float) -> Cluster:
    """Workers of the measured machine: through its memory, with servers by messages, with its contention."""
    names = ("messages", *AVERAGED[backend]) if served else AVERAGED[backend]
    link = _link(profile, names, workers)
    return equal_hosts(
        workers, workers, link, lambda _: link, contention=profile.contention_between(apart), backend=backend
    )


def equal_machines(profile: Profile, per_host: int, workers: int, served: bool, apart: float) -> Cluster:
    """Hosts like the measured one on the measured network, whose link is as measured with as many workers."""
    link = _link(profile, ("wire", "network") if served else ("network",), workers)
    inside = _link(profile, AVERAGED["shm"], per_host)
    contention = profile.contention_between(apart)
    return equal_hosts(workers, per_host, link, lambda _: inside, contention=contention)


def equal_hosts(
    workers: int, per_host: int, link: Link, inside: Callable[[int], Link], **settings: Any
) -> Cluster:
    """As many equal hosts as it takes, the last one partly used; ``inside`` is what the workers of a host share."""

    def host(workers: int) -> Host:
        return Host(name="host", link=link, workers=workers, inside=inside(workers), **settings)

    whole, rest = divmod(workers, per_host)
    groups = [HostGroup(host(per_host), count=whole)] if whole else []
    return Cluster(groups=(*groups, *([HostGroup(host(rest), first=whole)] if rest else [])))


def _first_fit(profile: Profile, names: tuple[str, ...], workers: int) -> LinkFit | None:
    found = (profile.link(name, workers) for name in names)
    return next((fit for fit in found if fit is not None), None)


def _link(profile: Profile, names: tuple[str, ...], workers: int) -> Link:
    fit = _first_fit(profile, names, workers)
    return MEMORY if fit is None else Link(bandwidth=fit.bandwidth, latency=fit.latency)


def _by_catalogue(request: PredictRequest, profile: Profile | None) -> Deployment:
    network = find_network(request.network or USUAL_NETWORK)
    per_host = request.per_host or 1
    linked = inside_name(request)
    inside = None if linked is None else find_network(linked)
    alone = request.workers is not None and max(request.workers) <= per_host
    words = []
    if not alone:
        words.append(("" if request.network else "no network is given, so ") + sheet_words(network))
    elif request.network:
        words.append(f"nothing crosses network {request.network}, for all workers are on one host")
    if per_host > 1:
        shared = f"shared memory of a small machine ({MEMORY} for all workers together)"
        guessed = "" if request.inside else "no link inside is given, so "
        words.append(f"inside a host, {guessed}{shared if inside is None else sheet_words(inside)}")
    return Deployment(
        layout=lambda workers, *_: equal_hosts(
            workers,
            per_host,
            Link.of(network),
            lambda many: MEMORY if inside is None else Link.of(inside, many),
            contention=tuple(profile.contention) if profile else (),
        ),
        most=per_host if alone else MOST_WORKERS,
        words="; ".join(words) or "none, for all workers are on one host",
        network=network.title,
        inside="shared memory" if inside is None else inside.title,
        own_links=inside is not None and inside.inside,
        by_catalogue=True,
    )


def inside_name(request: PredictRequest) -> str | None:
    """What connects the workers of a host: as requested, else the PCIe of such a GPU; None for shared memory."""
    if request.inside is not None or request.device is None or (request.per_host or 1) == 1:
        return request.inside
    sheet = find_device(request.device)
    return next(iter(sheet.inside), OLD_INSIDE) if sheet.kind == "gpu" else None

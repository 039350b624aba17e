"""Where the workers are, for any number of them: hosts of the catalogue, a described cluster, or measured machines."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.clusters.catalogue import DeviceSheet, NetworkSheet, find_device, find_network
from paceline.clusters.cluster import CIPHER, MEMORY, Backend, Cluster, Host, HostGroup, Link, StepTimes
from paceline.clusters.description import read_cluster
from paceline.clusters.profile import INSIDE, LinkFit, Profile
from paceline.costs.recorded import check_alone
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.threads import HostRoom
from paceline.studies.predict.compute import ComputeTimes, roofline
from paceline.studies.predict.prediction import Where, Wire
from paceline.studies.predict.request import MOST_WORKERS, USUAL_NETWORK, PredictRequest
from paceline.units import show_rate, show_seconds

SHEET_SPREAD = 0.2
"""Of links that were not measured, as the logarithm's standard deviation: software reaches 0.7 to 0.95 of most."""

OLD_INSIDE = "pcie3-x16"
"""Of GPUs whose sheet names no link: all are older than PCIe 4."""

MEASURED = "measured"
"""The network of a profile."""

MOST_HERE = 256
"""Workers of one machine: so many were never measured, and no contention holds that far."""

_SHARED = "shared memory"
_AVERAGED = ("memory", "loopback")


@dataclass(frozen=True)
class SyncPattern:
    """How workers exchange, where it matters to the machine that they share."""

    served: bool = False
    """With servers, rather than with each other."""
    apart: float = 0.0
    """Seconds that a worker computes between two exchanges."""


Layout = Callable[[int, SyncPattern], Cluster]
"""From a number of workers, and how they exchange, to the hosts that they are on."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Hosts for any number of workers, and what is known of their links."""

    layout: Layout
    most: int
    """The largest number of workers that there is room for."""
    words: str
    """Where the links' figures are from."""
    network: str = ""
    """What the network between hosts is called."""
    inside: str = ""
    """What the link inside a host is called."""
    own_links: bool = False
    """Whether every worker has a link inside the host of its own: what the host has is the sum of them."""
    spread: float = SHEET_SPREAD
    jitter: float = 0.0
    described: Cluster | None = None
    """The cluster that a user described."""
    by_catalogue: bool = False
    """Whether the links are those of the catalogue, so that others can be had."""

    def cluster(self, workers: int, pattern: SyncPattern = SyncPattern()) -> Cluster:  # noqa: B008
        return self.layout(workers, pattern)

    def hosts(self, workers: int) -> int:
        """How many hosts these workers are on."""
        return sum(group.count for group in self.cluster(workers).groups if group.workers)

    def wire(self, cluster: Cluster, where: Where) -> Wire:
        """The slowest such link of a cluster, as 'paceline networks' shows it."""
        if where == "network":
            links = [group.host.link for group in cluster.groups]
            rates = [link.bandwidth for link in links]
        else:
            hosts = [group.host for group in cluster.groups if group.workers]
            links = [host.inside for host in hosts]
            rates = [host.inside.bandwidth / (host.workers if self.own_links else 1) for host in hosts]
        latency = max(link.latency for link in links)
        return Wire(where=where, name=getattr(self, where), bandwidth=min(rates), latency=latency)


def find_deployment(request: PredictRequest, profile: Profile | None) -> Deployment:
    """By a cluster's description, by the profile's links, or by the catalogue's.

    Refuses more workers on a host than the measured times hold for.
    """
    if request.times is not None:
        check_alone(RunFolder(request.times))
    room = _find_room(request, profile)
    if request.cluster is not None:
        deployment = _described(request.cluster)
        if room is not None and deployment.described is not None:
            room.check_hosts(deployment.described, f"cluster {request.cluster}")
    else:
        if room is not None and request.per_host is not None:
            room.check(request.per_host, f"{request.per_host} workers per host")
        if request.network == MEASURED and profile is None:
            raise UsageError(f"network {MEASURED} is that of a profile; give a profile, or name a network")
        measured = request.network == MEASURED or request.network is None
        if profile is not None and measured and (request.network or profile.links):
            deployment = _measured(request, profile, room)
        else:
            deployment = _by_catalogue(request, profile)
    if not request.served:
        return deployment
    return replace(deployment, words=deployment.words + _server_words(request, deployment, profile))


def _find_room(request: PredictRequest, profile: Profile | None) -> HostRoom | None:
    """How many workers a host has cores for, by the record or by the profile.

    A record says it where there are both; together they were measured by workers of the profile's threads.
    """
    there = None if profile is None else HostRoom.of_profile(profile)
    run = None if request.times is None else HostRoom.of_run(RunFolder(request.times))
    if run is None or there is None:
        return run or there
    return replace(run, measured=there.measured) if run.threads == there.threads else run


def equal_hosts(
    link: Link, per_host: int, inside: Callable[[int], Link], contention: tuple[float, ...]
) -> Layout:
    """As many equal hosts as it takes, the last one partly used; ``inside`` is what the workers of a host share."""

    def host(workers: int) -> Host:
        return Host(name="host", link=link, workers=workers, inside=inside(workers), contention=contention)

    def layout(workers: int, pattern: SyncPattern) -> Cluster:  # noqa: ARG001
        whole, rest = divmod(workers, per_host)
        groups = [HostGroup(host(per_host), count=whole)] if whole else []
        return Cluster(groups=(*groups, *([HostGroup(host(rest), first=whole)] if rest else [])))

    return layout


def first_workers(cluster: Cluster) -> Layout:
    """Hosts of a described cluster in their order, the last one partly used.

    Hosts that only keep servers are part of it where there are servers.
    """

    def layout(workers: int, pattern: SyncPattern) -> Cluster:
        kept, left = [], workers
        for host in cluster.hosts:
            taken = min(left, host.workers)
            if taken or (pattern.served and host.servers):
                kept.append(replace(host, workers=taken))
            left -= taken
        return cluster.with_hosts(tuple(kept))

    return layout


def one_machine(profile: Profile, backend: Backend = "shm") -> Layout:
    """Workers of the measured machine: through its memory, with servers by messages, with its contention."""

    def layout(workers: int, pattern: SyncPattern) -> Cluster:
        link = _link(fit_of_machine(profile, backend, workers, pattern.served))
        host = Host(
            name=profile.name,
            link=link,
            inside=link,
            workers=workers,
            contention=profile.contention_between(pattern.apart),
            backend=backend,
        )
        return Cluster.of((host,))

    return layout


def fit_of_machine(profile: Profile, backend: Backend, workers: int, served: bool) -> LinkFit | None:
    """What was measured of how these workers exchange; the nearest to it where that was not."""
    names = _AVERAGED if backend == "shm" else _AVERAGED[::-1]
    return _first_fit(profile, ("messages", *names) if served else names, workers)


def equal_machines(profile: Profile, per_host: int) -> Layout:
    """Hosts like the measured one on the measured network, whose link is as measured with as many workers."""

    def layout(workers: int, pattern: SyncPattern) -> Cluster:
        fit = fit_of_network(profile, workers, pattern.served)
        inside = _link(_first_fit(profile, _AVERAGED, per_host))
        contention = profile.contention_between(pattern.apart)
        return equal_hosts(_link(fit), per_host, lambda _: inside, contention)(workers, pattern)

    return layout


def fit_of_network(profile: Profile, workers: int, served: bool) -> LinkFit | None:
    return _first_fit(profile, ("wire", "network") if served else ("network",), workers)


def _first_fit(profile: Profile, names: tuple[str, ...], workers: int) -> LinkFit | None:
    found = (profile.link(name, workers) for name in names)
    return next((fit for fit in found if fit is not None), None)


def _link(fit: LinkFit | None) -> Link:
    return MEMORY if fit is None else Link(bandwidth=fit.bandwidth, latency=fit.latency)


def _described(text: str) -> Deployment:
    cluster = read_cluster(text)
    stated = replace(cluster.times, jitter=0.0, serve=0.0, aggregate=0.0)
    if stated != StepTimes():
        raise UsageError(
            f"cluster {text} states how long a step takes, which is what is predicted here; leave its times out, or "
            "use 'paceline simulate'"
        )
    for group in cluster.groups:
        if settings := ", ".join(group.host.churn):
            raise UsageError(
                f"cluster {cluster.name}: workers of host {group.name(0)!r} join or leave ({settings}), and what is "
                "predicted is the pace of those that stay; leave that out, or use 'paceline simulate'"
            )
    return Deployment(
        layout=first_workers(cluster),
        most=cluster.workers,
        words=f"as {cluster.name} describes them: {cluster}",
        jitter=cluster.times.jitter,
        described=cluster,
    )


def _measured(request: PredictRequest, profile: Profile, room: HostRoom | None) -> Deployment:
    """On the measured machine, or on several like it where their network was measured."""
    apart = request.network == MEASURED or not any(link.name in INSIDE for link in profile.links)
    for setting, value in (("inside", request.inside), ("per-host", None if apart else request.per_host)):
        if value is not None:
            raise UsageError(
                f"{setting} {value}: without a network all workers are on the machine of profile {profile.name!r}, "
                "whose links were measured; name a network or leave it out"
            )
    if room is not None and request.workers is not None and not apart:
        room.check(max(request.workers), f"{max(request.workers)} workers")
    backend = request.backend or "shm"
    fit = fit_of_network(profile, 2, False) if apart else fit_of_machine(profile, backend, 2, False)
    if fit is None:
        raise UsageError(
            f"network {MEASURED}: profile {profile.name!r} has no network; 'paceline calibrate links' on two hosts "
            "measures it, or name one, such as 10gbit"
        )
    here = MOST_HERE if room is None else room.workers
    return Deployment(
        layout=equal_machines(profile, request.per_host or 1) if apart else one_machine(profile, backend),
        most=MOST_WORKERS if apart else here,
        words=f"{fit.name} of {profile.name} as measured, {show_rate(fit.bandwidth)}, {show_seconds(fit.latency)}",
        network="as measured" if apart else "",
        inside="" if apart else "as measured",
        spread=fit.spread,
    )


def _by_catalogue(request: PredictRequest, profile: Profile | None) -> Deployment:
    """Equal hosts; where the requested workers fit one, there is only that one."""
    network = find_network(request.network or USUAL_NETWORK)
    per_host = request.per_host or 1
    linked = inside_name(request)
    inside = None if linked is None else find_network(linked)
    alone = request.workers is not None and max(request.workers) <= per_host
    return Deployment(
        layout=equal_hosts(
            Link.of(network),
            per_host,
            lambda workers: MEMORY if inside is None else Link.of(inside, workers),
            tuple(profile.contention) if profile else (),
        ),
        most=per_host if alone else MOST_WORKERS,
        words=_link_words(request, profile, network, inside, alone),
        network=network.title,
        inside=_SHARED if inside is None else inside.title,
        own_links=inside is not None and inside.inside,
        by_catalogue=True,
    )


def _link_words(
    request: PredictRequest,
    profile: Profile | None,
    network: NetworkSheet,
    inside: NetworkSheet | None,
    alone: bool,
) -> str:
    missing = "the profile has no links ('paceline calibrate links' adds them), so "
    assumed = "" if request.network else missing if profile else "no network is given, so "
    between = f"{assumed}{_sheet_words(network)}"
    guessed = "" if request.inside else "no link inside is given, so "
    memory = f"{_SHARED} of a small machine ({MEMORY} for all workers together)"
    within = f"inside a host, {guessed}{memory if inside is None else _sheet_words(inside)}"
    if request.workers == (1,) and not request.served:
        within = "none is used, for one worker exchanges nothing"
    if not alone:
        return f"{between}; {within}" if (request.per_host or 1) > 1 else between
    if request.network is None:
        return within
    return f"{within}; nothing crosses network {request.network}, for all workers are on one host"


def _sheet_words(network: NetworkSheet) -> str:
    return f"{network.title} by its data sheet ({network.source}, {network.date})"


def inside_name(request: PredictRequest) -> str | None:
    """What connects the workers of a host: as requested, else the PCIe of such a GPU; None for shared memory."""
    if request.inside is not None or request.device is None or (request.per_host or 1) == 1:
        return request.inside
    sheet = find_device(request.device)
    return next(iter(sheet.inside), OLD_INSIDE) if sheet.kind == "gpu" else None


def _server_words(request: PredictRequest, deployment: Deployment, profile: Profile | None) -> str:
    """Where servers are and how fast messages to them are encrypted."""
    measured = profile.cipher if profile else None
    rate = f"{show_rate(measured or CIPHER)} a process ({'measured' if measured else 'assumed'})"
    return (
        f"; {_server_hosts(request, deployment)}; messages to servers on other hosts are encrypted, at {rate}"
    )


def _server_hosts(request: PredictRequest, deployment: Deployment) -> str:
    cluster = deployment.described
    if cluster is not None and any(group.host.servers for group in cluster.groups):
        places = cluster.place_servers(request.servers)
        named = dict.fromkeys(cluster.hosts[place].name for place in places)
        return f"servers are on {', '.join(named)}"
    if request.servers == 1:
        return "the server is on the first worker's host"
    return (
        f"the {request.servers} servers are on the first worker's host and those after it, one each in turn"
    )


def first_device(cluster: Cluster) -> DeviceSheet | None:
    """The device of the first worker, where the catalogue has it."""
    return next(group.host for group in cluster.groups if group.workers).device.sheet


def at_their_speeds(
    request: PredictRequest, deployment: Deployment, compute: ComputeTimes, batch: int
) -> Deployment:
    """Make hosts of a described cluster that name devices of the catalogue as fast as their sheets say.

    A stated speed multiplies; a host that names no device of the catalogue has the stated speed alone.
    """
    cluster = deployment.described
    if cluster is None or not any(group.host.device.sheet for group in cluster.groups):
        return deployment
    if request.profile is not None or request.times is not None:
        _refuse_devices(cluster, "the times" if request.times is not None else "the profile")
    step = compute.cost(batch).step
    base = step.compute
    speeds: dict[str, float] = {}

    def faster(host: Host) -> Host:
        sheet = host.device.sheet
        if sheet is None or not host.workers:
            return host
        if sheet.name not in speeds:
            speeds[sheet.name] = base / compute.compute_on(roofline(request, sheet), batch)
        return replace(host, device=replace(host.device, speed=host.device.speed * speeds[sheet.name]))

    changed = cluster.map_hosts(faster)
    return replace(deployment, layout=first_workers(changed), described=changed)


def _refuse_devices(cluster: Cluster, measured: str) -> None:
    for group in cluster.groups:
        if group.workers and group.host.device.sheet is not None:
            raise UsageError(
                f"{group.name(0)} has device {group.host.device.name!r}, and {measured} measured another; leave the "
                "names of devices out and state speeds, or predict for a device"
            )

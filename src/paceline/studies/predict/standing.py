"""Where the workers stand, from the words that say so."""

from dataclasses import dataclass, replace

from paceline import specs
from paceline.clusters.catalogue import NetworkSheet, find_device, find_network
from paceline.clusters.cluster import MEMORY, Cluster, Link, StepTimes
from paceline.clusters.description import read_cluster
from paceline.clusters.profile import INSIDE, Profile
from paceline.costs.recorded import check_alone
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.threads import HostRoom
from paceline.strategies import STRATEGIES
from paceline.studies.predict.machine import MOST_HERE, Machine, Machines
from paceline.studies.predict.places import Alike, Described, LinkNames, Place
from paceline.studies.predict.question import MOST_WORKERS
from paceline.studies.predict.words import USUAL_NETWORK, PredictRequest
from paceline.units import show_rate, show_seconds

SHEET_SPREAD = 0.2
"""Of links that nobody measured, as the logarithm's standard deviation: software reaches 0.7 to 0.95 of most."""

_SHARED = "shared memory"

OLD_INSIDE = "pcie3-x16"
"""Of GPUs whose sheet names no link: all are older than PCIe 4."""

MEASURED = "measured"
"""The network of a profile."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A place, and what is known of its links."""

    place: Place
    words: str
    names: LinkNames = LinkNames()
    spread: float = SHEET_SPREAD
    jitter: float = 0.0


def find_standing(words: PredictRequest, profile: Profile | None) -> Standing:
    """By a cluster's description, by the profile's links, or by the catalogue's.

    Refuses more workers on a host than the measured times hold for.
    """
    if words.times is not None:
        check_alone(RunFolder(words.times))
    room = _find_room(words, profile)
    if words.cluster is not None:
        standing = _described(words.cluster)
        if room is not None and isinstance(standing.place, Described):
            room.check_hosts(standing.place.whole, f"--cluster {words.cluster}")
        return standing
    if room is not None and words.per_host is not None:
        room.check(words.per_host, f"--per-host {words.per_host}")
    if words.network == MEASURED and profile is None:
        raise UsageError(f"--network {MEASURED} is that of a profile; add --profile, or name a network")
    if profile is not None and (words.network == MEASURED or (words.network is None and profile.links)):
        return _measured(words, profile, room)
    return _named(words, profile)


def _find_room(words: PredictRequest, profile: Profile | None) -> HostRoom | None:
    """How many workers a host has cores for, by the record or by the profile.

    A record says it where there are both; together they were measured by workers of the profile's threads.
    """
    there = None if profile is None else HostRoom.of_profile(profile)
    run = None if words.times is None else HostRoom.of_run(RunFolder(words.times))
    if run is None or there is None:
        return run or there
    return replace(run, measured=there.measured) if run.threads == there.threads else run


def _described(text: str) -> Standing:
    cluster = read_cluster(text)
    stated = replace(cluster.times, jitter=0.0, serve=0.0, aggregate=0.0)
    if stated != StepTimes():
        raise UsageError(
            f"--cluster {text} states how long a step takes, which is what is predicted here; leave its times "
            "out, or use 'paceline simulate'"
        )
    _check_there_all_along(cluster)
    return Standing(
        place=Described(cluster),
        words=f"as {cluster.name} describes them: {cluster}",
        jitter=cluster.times.jitter,
    )


def _check_there_all_along(cluster: Cluster) -> None:
    """Refuse workers that come late or go early: there is no pace in the long run of who is not there."""
    for group in cluster.groups:
        if words := ", ".join(group.host.churn):
            raise UsageError(
                f"--cluster {cluster.name}: workers of host {group.name(0)!r} come or go ({words}), and what is "
                "predicted is the pace of those who stay; leave that out, or use 'paceline simulate'"
            )


def _measured(words: PredictRequest, profile: Profile, room: HostRoom | None) -> Standing:
    """On the measured machine, or on several like it where their network was measured."""
    apart = words.network == MEASURED or not any(link.name in INSIDE for link in profile.links)
    for option, value in (("--inside", words.inside), ("--per-host", None if apart else words.per_host)):
        if value is not None:
            raise UsageError(
                f"{option} {value}: without --network all workers stand on the machine of profile {profile.name!r}, "
                "whose links were measured; add --network or leave it out"
            )
    if room is not None and words.workers is not None and not apart:
        room.check(max(words.workers), f"--workers {max(words.workers)}")
    here = Machine(profile, words.backend or "shm", MOST_HERE if room is None else room.workers)
    place = Machines(profile, 1 if words.per_host is None else words.per_host) if apart else here
    fit = place.fit(2, served=False)
    if fit is None:
        raise UsageError(
            f"--network {MEASURED}: profile {profile.name!r} has no network; 'paceline calibrate --nodes 2 ...' on "
            "two hosts measures it, or name one, such as 10gbit"
        )
    return Standing(
        place=place,
        words=f"{fit.name} of {profile.name} as measured, {show_rate(fit.bandwidth)}, {show_seconds(fit.latency)}",
        names=LinkNames(network="as measured") if apart else LinkNames(inside="as measured"),
        spread=fit.spread,
    )


def _named(words: PredictRequest, profile: Profile | None) -> Standing:
    """Hosts that are all alike; where the workers that are asked about fit one, there is only that one."""
    network = find_network(words.network or USUAL_NETWORK)
    per_host = words.per_host or 1
    linked = inside_name(words)
    inside = None if linked is None else find_network(linked)
    alone = words.workers is not None and max(words.workers) <= per_host
    place = Alike(
        link=Link.of(network),
        per_host=per_host,
        most=per_host if alone else MOST_WORKERS,
        inside=lambda workers: MEMORY if inside is None else Link.of(inside, workers),
        contention=tuple(profile.contention) if profile else (),
    )
    missing = "the profile has no links ('paceline calibrate --workers 2' adds them), so "
    assumed = "" if words.network else missing if profile else "--network is not given, so "
    between = f"{assumed}{_sheet(network)}"
    guessed = "" if words.inside else "--inside is not given, so "
    within = f"inside a host, {guessed}{_memory() if inside is None else _sheet(inside)}"
    if words.workers == (1,) and not _is_served(words):
        within = "none is used, for one worker exchanges nothing"
    several = f"{between}; {within}" if per_host > 1 else between
    return Standing(
        place=place,
        words=f"{within}{_unused(words)}" if alone else several,
        names=LinkNames(
            network=network.title,
            inside=_SHARED if inside is None else inside.title,
            own=inside is not None and inside.inside,
        ),
    )


def inside_name(words: PredictRequest) -> str | None:
    """What connects the workers of a host: as said, else the PCIe that such a GPU has; None for shared memory."""
    if words.inside is not None or words.device is None or (words.per_host or 1) == 1:
        return words.inside
    sheet = find_device(words.device)
    return next(iter(sheet.inside), OLD_INSIDE) if sheet.kind == "gpu" else None


def _is_served(words: PredictRequest) -> bool:
    return any(specs.build(one, STRATEGIES, "strategy").served for one in words.strategies)


def _sheet(network: NetworkSheet) -> str:
    return f"{network.title} by its data sheet ({network.source}, {network.date})"


def _memory() -> str:
    return f"{_SHARED} of a small machine ({MEMORY} for all workers together)"


def _unused(words: PredictRequest) -> str:
    """Say that a network was named for nothing."""
    if words.network is None:
        return ""
    return f"; nothing crosses --network {words.network}, for all workers are on one host"

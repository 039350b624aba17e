"""Where the workers stand, from the words that say so."""

from dataclasses import dataclass, replace

from paceline.clusters.cluster import MEMORY, Device, Link
from paceline.clusters.description import DEFAULT_LINK, read_cluster
from paceline.clusters.networks import NETWORKS, find_network
from paceline.clusters.profile import LinkFit, Profile
from paceline.clusters.times import StepTimes
from paceline.errors import Mistake
from paceline.studies.predict.places import Alike, Described, Place
from paceline.studies.predict.question import MOST_WORKERS, Faster
from paceline.studies.predict.words import USUAL_NETWORK, Words

SHEET_SPREAD = 0.2
"""Of links that nobody measured, as the logarithm's standard deviation: software reaches 0.7 to 0.95 of most."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A place, and what is known of its links."""

    place: Place
    words: str
    spread: float = SHEET_SPREAD
    jitter: float = 0.0
    faster: tuple[Faster, ...] = ()


def find_standing(words: Words, profile: Profile | None) -> Standing:
    """By a cluster's description, by the profile's links, or by the catalogue's."""
    if words.cluster is not None:
        return _described(words.cluster)
    if profile is not None and words.network is None and profile.links:
        return _measured(words, profile)
    return _named(words, profile)


def _described(text: str) -> Standing:
    cluster = read_cluster(text)
    stated = replace(cluster.times, jitter=0.0, serve=0.0, aggregate=0.0)
    if stated != StepTimes():
        raise Mistake(
            f"--cluster {text} states how long a step takes, which is what is predicted here; leave its times "
            "out, or use 'paceline simulate'"
        )
    return Standing(
        place=Described(cluster),
        words=f"as {cluster.name} describes them: {cluster}",
        jitter=cluster.times.jitter,
    )


def _measured(words: Words, profile: Profile) -> Standing:
    """All workers on the measured machine, or on several like it where their network was measured too."""
    if words.inside is not None:
        raise Mistake(
            f"--inside {words.inside} contradicts profile {profile.name!r}, which has measured links; leave it out"
        )
    fits = {fit.name: fit for fit in profile.links}
    network = fits.get("network")
    inside = fits.get("memory") or fits.get("loopback")
    fit = network or inside or profile.links[0]
    per_host = words.per_host or (1 if network else MOST_WORKERS)
    place = Alike(
        link=_link(network) if network else DEFAULT_LINK,
        per_host=per_host,
        inside=lambda workers: _link(inside) if inside else MEMORY,  # noqa: ARG005
        device=Device(reduce_seconds=fit.reduce_seconds),
        company=tuple(profile.company),
    )
    return Standing(
        place=place, words=f"{fit.name} as measured, {_link(fit)} ({fit.points} points)", spread=fit.spread
    )


def _named(words: Words, profile: Profile | None) -> Standing:
    sheet = find_network(words.network or USUAL_NETWORK)
    inside = None if words.inside is None else find_network(words.inside)
    place = Alike(
        link=Link.of(sheet),
        per_host=1 if words.per_host is None else words.per_host,
        inside=lambda workers: MEMORY if inside is None else Link.of(inside, workers),
        company=tuple(profile.company) if profile else (),
    )
    assumed = "" if words.network else "nobody said which, so "
    told = f"{assumed}{sheet.title} by its data sheet ({sheet.source}, {sheet.date})"
    return Standing(place=place, words=told, faster=_faster(words))


def _faster(words: Words) -> tuple[Faster, ...]:
    """The catalogue's networks that carry more than the one there is."""
    there = find_network(words.network or USUAL_NETWORK)
    more = [sheet for sheet in NETWORKS.values() if not sheet.inside and sheet.bandwidth > there.bandwidth]
    return tuple(
        Faster(
            name=sheet.name,
            bandwidth=sheet.bandwidth / there.bandwidth,
            latency=min(1.0, sheet.latency / there.latency) if there.latency else 1.0,
        )
        for sheet in sorted(more, key=lambda sheet: sheet.bandwidth)
    )


def _link(fit: LinkFit) -> Link:
    return Link(bandwidth=fit.bandwidth, latency=fit.latency)

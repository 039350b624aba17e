"""What several workers found, as a part of a profile."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from paceline.clusters.profile import LinkFit, Profile
from paceline.studies.calibrate.link_fit import check_rates
from paceline.studies.calibrate.links import ContentionFit
from paceline.studies.calibrate.profile import mark_disturbed


def add_together(profile: Profile, found: ContentionFit) -> Profile:
    """The profile with these links and this contention, in place of those that it had of as many workers."""
    apart = not any(link.name == "memory" for link in found.links)
    contention = {} if apart else _contention(profile, found)
    marked = mark_disturbed(add_links(profile, found.links), found.disturbed)
    return replace(marked, **contention)  # type: ignore[arg-type]


def add_links(profile: Profile, links: Sequence[LinkFit]) -> Profile:
    """The profile with these links, in place of those of the same name and as many workers.

    Raises UsageError where one is faster than the memory that the profile's device was measured with.
    """
    check_rates(links, _memory(profile))
    anew = {(link.name, link.workers) for link in links}
    kept = [link for link in profile.links if (link.name, link.workers) not in anew]
    return replace(profile, links=(*kept, *links))


def _memory(profile: Profile) -> float:
    """Bytes a second; a device that only a record is known of has curves of nothing, and no such rate."""
    device = profile.device
    return float(device["limits"]["bandwidth"]) if device.get("curves") else inf


def _contention(profile: Profile, found: ContentionFit) -> dict[str, object]:
    """Both kinds of contention; numbers of workers that were never measured lie on a line between their neighbours."""
    return {
        "contention": _filled(profile.contention, found.workers, found.long),
        "contention_short": _filled(profile.contention_short, found.workers, found.short),
    }


def _filled(known: tuple[float, ...], workers: int, factor: float) -> tuple[float, ...]:
    before = (*(known or (1.0,))[: workers - 1],)
    missing = workers - 1 - len(before)
    last = before[-1]
    between = (last + (factor - last) * place / (missing + 1) for place in range(1, missing + 1))
    return (*before, *between, max(1.0, factor), *known[workers:])

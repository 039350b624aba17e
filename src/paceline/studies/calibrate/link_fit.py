"""From what all-reduces added to a step to a link's latency and bandwidth, and to contention: pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import fmean, pstdev
from typing import NamedTuple

from paceline.clusters.cluster import Backend, Cluster, Host, Link
from paceline.clusters.profile import FASTEST, INSIDE, LinkFit, Profile, short_contention_weight
from paceline.collectives import NATIVE
from paceline.costs.collectives import AllReduceCosts, through_server
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.studies.calibrate.device import mark_disturbed
from paceline.studies.collectives.probe import AlphaBeta, least_squares

LARGE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class AveragedStep:
    """What averaging cost a step."""

    sizes: tuple[int, ...]
    added: float
    beside: float
    """Seconds of the step without them; noise is in proportion to the whole."""

    @property
    def total(self) -> float:
        return self.beside + max(0.0, self.added)


class Contention(NamedTuple):
    """What slows workers of one host down."""

    short: float
    """How many times as long computing takes for workers that synchronise at once."""
    long: float
    """The same for those that never do."""
    barrier: float
    """Seconds that a barrier takes when the last worker has arrived: those that wait sleep, and have to wake up."""


@dataclass(frozen=True, kw_only=True)
class ContentionFit:
    """What was measured with ``workers`` workers."""

    workers: int
    short: float
    """How many times as long computing takes with all workers at it, which synchronise again at once."""
    long: float
    """The same where they never synchronise."""
    links: tuple[LinkFit, ...]
    disturbed: str = ""
    """What else computed meanwhile, in a sentence; empty where nothing did."""


def fit_link(
    name: str,
    hosts: Sequence[int],
    steps: Sequence[AveragedStep],
    *,
    wire: float | None = None,
    collective: str = NATIVE,
) -> LinkFit:
    """The link through which all-reduces among ranks on these hosts take what they took, least squares of the whole.

    ``name`` is "memory", "loopback" or "network"; "messages" are a synchronous server's on host 0: every
    worker's tensor goes there, and back. Where the seconds a byte of the ``wire`` are known, large tensors
    alone tell how much longer it takes in a step, and small ones only tell the latency: shapers let the first bytes
    after a pause pass at once. Neither figure comes out negative.
    """
    if len(steps) < 2:
        raise UsageError(
            f"{len(steps)} steps do not determine a link's latency and bandwidth: measure 2 or more"
        )

    def seconds(step: AveragedStep, link: Link) -> float:
        return _seconds(name, hosts, step, link, collective)

    delays = [seconds(step, Link(latency=1.0, bandwidth=1e30)) for step in steps]
    moved = [seconds(step, Link(latency=0.0, bandwidth=1.0)) for step in steps]
    weights = [1 / step.total**2 for step in steps]
    added = [step.added for step in steps]
    if wire is None:
        latency, byte_seconds = least_squares((delays, moved), added, weights)
    else:
        large = [s.added / size for s, size in zip(steps, moved, strict=True) if sum(s.sizes) >= LARGE]
        byte_seconds = max(wire, fmean(large) if large else 0.0)
        left = [spent - byte_seconds * size for spent, size in zip(added, moved, strict=True)]
        (latency,) = least_squares((delays,), left, weights)
    link = Link(latency=latency, bandwidth=1 / max(byte_seconds, 1 / FASTEST))
    off = [log(step.total / (step.beside + seconds(step, link))) for step in steps]
    return _link_fit(name, link, off, len(hosts))


def fit_wire(line: AlphaBeta, measured: Sequence[tuple[float, float]], workers: int) -> LinkFit:
    """The network as messages use it that are no part of an all-reduce: a line, and the (bytes, seconds) behind it."""
    link = Link(latency=line.latency, bandwidth=1 / max(line.byte_seconds, 1 / FASTEST))
    return _link_fit("wire", link, [log(seconds / line.seconds(size)) for size, seconds in measured], workers)


def _link_fit(name: str, link: Link, off: Sequence[float], workers: int) -> LinkFit:
    return LinkFit(
        name=name,
        bandwidth=link.bandwidth,
        latency=link.latency,
        spread=pstdev(off),
        points=len(off),
        workers=workers,
    )


def fit_contention(points: Sequence[tuple[float, float]]) -> Contention:
    """What slows workers of one host down, from seconds that one computes between barriers and factors on them.

    A barrier takes as long whatever is computed before it: it is a part of a long step, and several times a very short
    one. No worker computes faster beside others, nor for synchronising often.
    """
    parts = [short_contention_weight(apart) for apart, _ in points]
    once = [1 / apart for apart, _ in points]
    weights = [1 / factor**2 for _, factor in points]
    over = [factor - 1 for _, factor in points]
    long, more, barrier = least_squares(([1.0] * len(points), parts, once), over, weights)
    return Contention(short=1 + long + more, long=1 + long, barrier=barrier)


def _seconds(name: str, hosts: Sequence[int], step: AveragedStep, link: Link, collective: str) -> float:
    """What the model predicts for a step; a link's own figures enter it in proportion."""
    backend: Backend = "shm" if name == "memory" else "gloo"
    counts = Counter(hosts)
    if name == "messages":
        counts[0] += 0  # the server's host may have no workers
    described = Cluster.of(
        Host(name=str(host), link=link, inside=link, workers=count, backend=backend)
        for host, count in sorted(counts.items())
    )
    topology = Topology(described)
    if name == "messages":
        return sum(through_server(topology, topology.workers, 0, size).seconds for size in step.sizes)
    costs = AllReduceCosts(collective, topology)
    return sum(costs.price(size, 1).seconds for size in step.sizes)


def add_contention(profile: Profile, found: ContentionFit) -> Profile:
    """The profile with these links and, of workers on one host, this contention, in place of those of as many."""
    profile = mark_disturbed(add_links(profile, found.links), found.disturbed)
    if not any(link.name == "memory" for link in found.links):
        return profile
    return replace(
        profile,
        contention=_filled(profile.contention, found.workers, found.long),
        contention_short=_filled(profile.contention_short, found.workers, found.short),
    )


def add_links(profile: Profile, links: Sequence[LinkFit]) -> Profile:
    """The profile with these links, in place of those of the same name and as many workers.

    Messages inside a host lie in its memory, so a UsageError is raised where one is faster than the memory that the
    profile's device was measured with; a device that only a record is known of has no rate of memory.
    """
    memory = float(profile.device["limits"]["bandwidth"]) if profile.device.get("curves") else inf
    for link in links:
        if link.name in INSIDE and link.has_bandwidth and memory < link.bandwidth:
            raise UsageError(
                f"{link.name}: {link.bandwidth / 1e9:.3g} GB/s is more than the memory's own {memory / 1e9:.3g} GB/s, "
                "so something else ran while this was measured; calibrate again on a quiet machine"
            )
    anew = {(link.name, link.workers) for link in links}
    kept = [link for link in profile.links if (link.name, link.workers) not in anew]
    return replace(profile, links=(*kept, *links))


def _filled(known: tuple[float, ...], workers: int, factor: float) -> tuple[float, ...]:
    """Numbers of workers that were never measured lie on a line between their neighbours."""
    before = (known or (1.0,))[: workers - 1]
    missing = workers - 1 - len(before)
    last = before[-1]
    between = (last + (factor - last) * place / (missing + 1) for place in range(1, missing + 1))
    return (*before, *between, max(1.0, factor), *known[workers:])

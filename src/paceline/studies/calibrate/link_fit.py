"""From what all-reduces added to a step to a link's latency and bandwidth: pure, so that it can be tested."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, pstdev

from paceline.clusters.cluster import Backend, Cluster, Host, Link
from paceline.clusters.profile import INSIDE, LinkFit, moment
from paceline.costs.all_reduce import Native
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.studies.collectives.probe import AlphaBeta

FASTEST = 1e12
"""Bytes a second that no link between processes reaches: where a fit finds no time a byte, latency is all there is."""

LARGE = 2_000_000
"""Bytes from which a tensor tells the rate of a network."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step, and what was averaged in it."""

    sizes: tuple[int, ...]
    """Bytes of the tensors, which travel one after the other."""
    added: float
    """Seconds by which the step was longer for them."""
    beside: float
    """Seconds of the step without them; noise is in proportion to the whole."""


def fit_link(
    way: str, hosts: Sequence[int], points: Sequence[Point], *, wire: float | None = None
) -> LinkFit:
    """The link through which all-reduces among ranks on these hosts take what they took, least squares of the whole.

    ``way`` is "memory", "loopback" or "network"; "messages" are a synchronous server's on the same host: everybody's
    tensor goes there, and back. Where the ``wire`` is known to take so many seconds a byte, large tensors alone say
    how much longer it takes in a step, and small ones only tell the latency: shapers let the first bytes after a pause
    pass at once. Neither figure comes out negative.
    """
    if len(points) < 2:
        raise UsageError(f"{len(points)} steps tell no link's latency and bandwidth: measure 2 or more")
    delays = [_seconds(way, hosts, point, Link(latency=1.0, bandwidth=1e30)) for point in points]
    moved = [_seconds(way, hosts, point, Link(latency=0.0, bandwidth=1.0)) for point in points]
    weights = [1 / (point.beside + max(0.0, point.added)) ** 2 for point in points]
    added = [point.added for point in points]
    if wire is None:
        latency, byte_seconds = _least_squares(delays, moved, added, weights)
    else:
        byte_seconds = max([wire, *_rates(points, moved)])
        left = [seconds - byte_seconds * size for seconds, size in zip(added, moved, strict=True)]
        latency = _least_squares(delays, [0.0] * len(points), left, weights)[0]
    link = Link(latency=latency, bandwidth=_bandwidth(byte_seconds))
    return LinkFit(
        name=way,
        bandwidth=link.bandwidth,
        latency=latency,
        spread=_spread(way, hosts, points, link),
        points=len(points),
        workers=len(hosts),
    )


def fit_wire(line: AlphaBeta, measured: Sequence[tuple[float, float]], workers: int) -> LinkFit:
    """The network as messages use it that are no part of an all-reduce: a line, and the (bytes, seconds) behind it."""
    return LinkFit(
        name="wire",
        bandwidth=_bandwidth(line.byte_seconds),
        latency=line.latency,
        spread=pstdev(log(seconds / line.seconds(size)) for size, seconds in measured),
        points=len(measured),
        workers=workers,
    )


def check_rates(links: Iterable[LinkFit], memory: float) -> None:
    """Refuse links inside a host that are faster than its memory, in bytes a second, in which their messages lie."""
    for link in links:
        if link.name in INSIDE and memory < link.bandwidth < FASTEST:
            raise UsageError(
                f"{link.name}: {link.bandwidth / 1e9:.3g} GB/s is more than the memory's own {memory / 1e9:.3g} GB/s, "
                "so something else ran while this was measured; calibrate again on a quiet machine"
            )


def _bandwidth(byte_seconds: float) -> float:
    return 1 / max(byte_seconds, 1 / FASTEST)


def _spread(way: str, hosts: Sequence[int], points: Sequence[Point], link: Link) -> float:
    """Of the steps as measured over the steps as this link would have them."""
    return pstdev(
        log((one.beside + max(0.0, one.added)) / (one.beside + _seconds(way, hosts, one, link)))
        for one in points
    )


def fit_contention(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How many times as long computing takes for workers who meet at once, and for those who never do.

    ``points`` are seconds between meetings and such factors. Contention makes nobody faster, nor does
    meeting often.
    """
    parts = [moment(apart) for apart, _ in points]
    weights = [1 / factor**2 for _, factor in points]
    ones, over = [1.0] * len(points), [factor - 1 for _, factor in points]
    long, more = _least_squares(ones, parts, over, weights)
    return 1 + long + more, 1 + long


def _seconds(way: str, hosts: Sequence[int], point: Point, link: Link) -> float:
    """What the model makes of a point; a link's own figures enter it in proportion."""
    if way == "messages":
        return sum(2 * (link.latency + len(hosts) * size / link.bandwidth) for size in point.sizes)
    backend: Backend = "shm" if way == "memory" else "gloo"
    described = Cluster.of(
        Host(name=str(host), link=link, inside=link, workers=count, backend=backend)
        for host, count in sorted(Counter(hosts).items())
    )
    native = Native(Topology(described))
    return sum(native.price(size, 1).seconds for size in point.sizes)


def _rates(points: Sequence[Point], moved: Sequence[float]) -> list[float]:
    """The mean seconds a byte of large tensors, if there are any."""
    large = [p.added / size for p, size in zip(points, moved, strict=True) if sum(p.sizes) >= LARGE]
    return [fmean(large)] if large else []


def _least_squares(
    first: Sequence[float], second: Sequence[float], values: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """The a and b, 0 or more, for which a first + b second come nearest to the values."""
    both = list(zip(first, second, values, weights, strict=True))
    aa, ab, bb = (
        sum(w * x * x for x, _, _, w in both),
        sum(w * x * y for x, y, _, w in both),
        sum(w * y * y for _, y, _, w in both),
    )
    av, bv = sum(w * x * v for x, _, v, w in both), sum(w * y * v for _, y, v, w in both)
    determinant = aa * bb - ab * ab
    if not determinant:
        return max(0.0, av / aa), 0.0
    a, b = (av * bb - bv * ab) / determinant, (bv * aa - av * ab) / determinant
    if a < 0:
        return 0.0, max(0.0, bv / bb)
    if b < 0:
        return max(0.0, av / aa), 0.0
    return a, b

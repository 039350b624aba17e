"""Small measurements of messages over Gloo, reducing and shared memory, and what they predict for each all-reduce.

None of them is an all-reduce of a size that the table has, and none is made after the first cell.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np
import torch

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.collectives import NATIVE
from paceline.collectives.execute import TorchTransport
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.topology import Topology
from paceline.costs.waves import Numbers
from paceline.shm.arena import PIECE
from paceline.shm.local_comm import ALL_READ_ALL, IN_PLACE_FROM
from paceline.shm.operations import Operation
from paceline.studies.collectives.group import PROBED, BenchBackend, BenchGroup, calls_within
from paceline.studies.collectives.request import ELSEWHERE, GLOO, SHM, BenchPrediction
from paceline.units import show_bytes, show_seconds

MESSAGES = (1_000, 4_000, 1_000_000, 3_000_000, 10_000_000)
"""Bytes of the messages that the link's figures are fitted to: small ones tell the latency, large ones the bandwidth.
Those in between depend on what buffers, and shapers with their bursts, let through at once, and would bend the line."""
EXCHANGES = 2
REDUCED = 2**20
EXACT = 20_000
"""Messages of a schedule up to which it is played message by message: some seconds."""
QUICKEST = 1e-13
"""Seconds a byte that a link takes at least: a fit may find none where latency is all there is."""


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """seconds = latency + bytes x seconds a byte."""

    latency: float
    byte_seconds: float

    def seconds(self, size: float) -> float:
        return self.latency + size * self.byte_seconds


@dataclass(frozen=True, kw_only=True)
class PiecewiseAlphaBeta:
    """One line up to ``limit`` bytes, and another one beyond."""

    limit: int
    small: AlphaBeta
    large: AlphaBeta

    def seconds(self, size: int) -> float:
        return (self.small if size <= self.limit else self.large).seconds(size)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    across: AlphaBeta | None
    """A message between hosts while one travels the other way; None on one host."""
    inside: AlphaBeta | None
    """A message inside a host while every worker there sends one; None where hosts have one worker."""
    reduce_seconds: float
    """Seconds a byte to combine two tensors in memory, while all workers do."""
    shared: Mapping[str, PiecewiseAlphaBeta]
    measured: Sequence[Mapping[str, object]]


class Prober:
    """Measures each size for ``seconds`` seconds, and keeps what it measured."""

    def __init__(self, group: BenchGroup, seconds: float) -> None:
        self._group, self._seconds = group, seconds
        self.measured: list[dict[str, object]] = []

    def probe(
        self, backends: Mapping[str, BenchBackend], operation: Operation, dtype: torch.dtype
    ) -> ProbeResult:
        group, hosts = self._group, self._group.hosts
        here = [rank for rank, host in enumerate(hosts) if host == hosts[group.rank]]
        firsts = group.first_of_each_host()
        return ProbeResult(
            across=fit_line(self.exchange("across", firsts)) if len(firsts) > 1 else None,
            inside=fit_line(self.exchange("inside", here)) if max(Counter(hosts).values()) > 1 else None,
            reduce_seconds=self._reduce(operation, dtype),
            shared={
                name: self._shared(name, backends[name]) for name in (SHM, ELSEWHERE) if name in backends
            },
            measured=self.measured,
        )

    def exchange(self, name: str, members: Sequence[int]) -> list[tuple[int, float]]:
        """Bytes and seconds of messages around a ring: each member sends to the right and receives from the left.

        A call is several exchanges, each begun when the one before is over: so are the rounds of a schedule, and what
        a link carries faster at first than later is spread alike. All ranks call this; the others only keep the time.
        """
        transport, rank = TorchTransport(), self._group.rank
        out, into = (torch.zeros(max(MESSAGES), dtype=torch.uint8) for _ in range(2))

        def swap(size: int) -> None:
            if rank not in members:
                return
            place = members.index(rank)
            for _ in range(EXCHANGES):
                arriving = transport.receive(into[:size], members[place - 1])
                leaving = transport.send(out[:size], members[(place + 1) % len(members)])
                arriving.wait()
                leaving.wait()

        times = self._times(name, {size: partial(swap, size) for size in MESSAGES})
        return [(size, seconds / EXCHANGES) for size, seconds in times.items()]

    def _reduce(self, operation: Operation, dtype: torch.dtype) -> float:
        held, came = (torch.zeros(16, REDUCED // dtype.itemsize, dtype=dtype) for _ in range(2))

        def combine() -> None:
            for mine, other in zip(held, came, strict=True):
                operation.combine(mine, other)

        return self._times("reduce", {held.nbytes: combine})[held.nbytes] / held.nbytes

    def _shared(self, name: str, backend: BenchBackend) -> PiecewiseAlphaBeta:
        """Up to a limit every rank combines all, with one barrier; beyond it each combines a share."""
        pair = IN_PLACE_FROM if name == SHM else PIECE
        limit = pair if self._group.workers == 2 else ALL_READ_ALL
        found = list(self._times(name, {size: backend.work(size) for size in PROBED}).items())
        small, large = [one for one in found if one[0] <= limit], [one for one in found if one[0] > limit]
        return PiecewiseAlphaBeta(limit=limit, small=fit_line(small), large=fit_line(large))

    def _times(self, name: str, works: Mapping[int, Callable[[], object]]) -> dict[int, float]:
        """The first quartile of each size, after a few calls that do not count.

        It is the link that is measured: whatever else goes on only adds, and a late wake-up costs more than a message.
        """
        once = {size: min(self._group.timed(work, 3)) for size, work in works.items()}
        calls = {size: calls_within(self._seconds, seconds) for size, seconds in once.items()}
        found = self._group.timed_in_turn(works, calls)
        typical = {size: float(np.quantile(times, 0.25)) for size, times in found.items()}
        self.measured += [
            {"probe": name, "bytes": size, "seconds": seconds, "calls": calls[size]}
            for size, seconds in typical.items()
        ]
        return typical


def fit_line(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """The line through (bytes, seconds) with the least squares of relative errors; neither figure is negative.

    Small messages count as much as large ones: the error is relative because predictions are judged so.
    """
    sizes, seconds = zip(*points, strict=True)
    weights = [1 / one**2 for one in seconds]
    latency, byte_seconds = least_squares(([1.0] * len(points), sizes), seconds, weights)
    return AlphaBeta(latency=latency, byte_seconds=byte_seconds)


def least_squares(
    columns: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """A coefficient a column, 0 or more, for which their sum comes nearest to the values; for a few columns."""
    scale = np.sqrt(weights)
    table, wanted = (np.array(columns) * scale).T, np.array(values) * scale
    fits = (_unbounded(table, wanted, kept) for kept in product((True, False), repeat=len(columns)))
    best = min(
        (one for one in fits if min(one) >= 0), key=lambda one: float(np.sum((table @ one - wanted) ** 2))
    )
    return tuple(map(float, best))


def _unbounded(table: Numbers, wanted: Numbers, kept: Sequence[bool]) -> Numbers:
    """The best coefficients of either sign where those of columns that are not kept are 0."""
    found = np.zeros(table.shape[1])
    if any(kept):
        found[list(kept)] = np.linalg.lstsq(table[:, kept], wanted, rcond=None)[0]
    return found


def predict(
    found: ProbeResult, hosts: Sequence[int], backends: Sequence[str], sizes: Sequence[int], element: int
) -> BenchPrediction:
    device = Device(reduce_seconds=found.reduce_seconds)
    # Workers of a host share what their messages took together.
    cluster = Cluster.of(
        Host(
            name=f"host-{host}",
            link=_link(found.across, 1),
            inside=_link(found.inside, count),
            workers=count,
            device=device,
        )
        for host, count in sorted(Counter(hosts).items())
    )
    topology = Topology(cluster)

    def seconds(name: str, size: int) -> float:
        if name in found.shared:
            return found.shared[name].seconds(size)
        if name == GLOO:
            return AllReduceCosts(NATIVE, topology).gloo_ring(size).seconds
        return AllReduceCosts(name, topology, exact=EXACT).price(size, element).seconds

    figures = asdict(found)
    probes = figures.pop("measured")
    return BenchPrediction(
        made_at=time.time(),
        how=tuple(_sentences(found)),
        figures=figures,
        probes=probes,
        seconds={name: {size: seconds(name, size) for size in sizes} for name in backends},
    )


def _link(line: AlphaBeta | None, at_once: int) -> Link:
    if line is None:
        return MEMORY
    return Link(latency=line.latency, bandwidth=at_once / max(line.byte_seconds, QUICKEST))


def _sentences(found: ProbeResult) -> list[str]:
    lines = {"a message between hosts": found.across, "a message inside a host": found.inside}
    for name, fit in found.shared.items():
        lines |= {f"{name} up to {show_bytes(fit.limit)}": fit.small, f"{name} beyond": fit.large}
    lines["reducing"] = AlphaBeta(latency=0.0, byte_seconds=found.reduce_seconds)
    return [
        f"{what}: {show_seconds(line.latency)} and {show_bytes(1 / max(line.byte_seconds, QUICKEST))}/s"
        for what, line in lines.items()
        if line
    ]

"""From what the probes found to what each all-reduce should take."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.costs.all_reduce import Native
from paceline.costs.schedules import SchedulePrices
from paceline.costs.topology import Topology
from paceline.studies.collectives.probe import AlphaBeta, ProbeResult
from paceline.studies.collectives.request import GLOO, BenchPrediction
from paceline.units import show_bytes, show_rate, show_seconds

PLAYED = 20_000
"""Messages of a schedule up to which it is played message by message: some seconds."""

QUICKEST = 1e-13
"""Seconds a byte that a link takes at least: a fit may find none where latency is all there is."""


def predict(
    found: ProbeResult, hosts: Sequence[int], sides: Sequence[str], sizes: Sequence[int], element: int
) -> BenchPrediction:
    """The price of every cell; ``hosts`` is the host of each rank."""
    topology = Topology(_cluster(found, hosts))
    figures = asdict(found)
    probes = figures.pop("measured")
    return BenchPrediction(
        made_at=time.time(),
        how=tuple(_sentences(found)),
        figures=figures,
        probes=probes,
        seconds={
            name: {size: _seconds(name, found, topology, size, element) for size in sizes} for name in sides
        },
    )


def _cluster(found: ProbeResult, hosts: Sequence[int]) -> Cluster:
    """The hosts with links as they were measured. Workers of a host share what their messages took together."""
    device = Device(reduce_seconds=found.reduce_seconds)
    return Cluster.of(
        Host(
            name=f"host-{host}",
            link=_link(found.across, 1),
            inside=_link(found.inside, count),
            workers=count,
            device=device,
        )
        for host, count in sorted(Counter(hosts).items())
    )


def _link(line: AlphaBeta | None, at_once: int) -> Link:
    """The link that so many messages at once share; a line that was not measured is not used."""
    if line is None:
        return MEMORY
    return Link(latency=line.latency, bandwidth=at_once / max(line.byte_seconds, QUICKEST))


def _seconds(name: str, found: ProbeResult, topology: Topology, size: int, element: int) -> float:
    if name in found.shared:
        return found.shared[name].seconds(size)
    if name == GLOO:
        return Native(topology).ring(size).seconds
    return SchedulePrices(name, topology, PLAYED).price(size, element).seconds


def _sentences(found: ProbeResult) -> list[str]:
    """Each figure and how it was measured."""
    sentences = []
    for line, where in ((found.across, "between hosts"), (found.inside, "inside a host")):
        if line:
            rate = show_rate(1 / max(line.byte_seconds, QUICKEST))
            sentences.append(
                f"{where}: {show_seconds(line.latency)} a message and {rate} each way, fitted to exchanges over Gloo"
            )
    sentences.append(
        f"reducing: {_rate(found.reduce_seconds)}, of two tensors in memory on all workers at once"
    )
    for name, fit in found.shared.items():
        small, large = fit.small, fit.large
        sentences.append(
            f"{name}: {show_seconds(small.latency)} and {_rate(small.byte_seconds)} up to {show_bytes(fit.limit)}, "
            f"{show_seconds(large.latency)} and {_rate(large.byte_seconds)} beyond, "
            "fitted to all-reduces of other sizes"
        )
    return sentences


def _rate(byte_seconds: float) -> str:
    return f"{1e-9 / byte_seconds:.3g} GB/s" if byte_seconds else "no time a byte"

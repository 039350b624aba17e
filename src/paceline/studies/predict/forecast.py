"""What to expect of a run that is about to begin, from a short measurement on its own workers and links."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from typing import Literal

import torch

from paceline.clusters.cluster import BUSY, MEMORY, Backend, Cluster, Host, Link
from paceline.clusters.profile import FASTEST
from paceline.codecs import build_codec
from paceline.codecs.context import Layout
from paceline.costs.coding import UNCODED, CodecCosts, MemoryRate
from paceline.costs.device import StepCost
from paceline.records.spans import StepBreakdown
from paceline.records.summary import Probe
from paceline.runtimes.prepare import server_count, short_codec
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.studies.calibrate.link_fit import AveragedStep, fit_link
from paceline.studies.predict.codecs import MeasuredCodec, compare_steps, link_in_question
from paceline.studies.predict.prediction import Basis, CodecComparison, CodecStep, LimitingLink, PredictionRow
from paceline.studies.predict.setup import Setup

SHARED = "shm"
"""How the transport is called where workers share memory."""


@dataclass(frozen=True, kw_only=True)
class CodecForecast:
    """What a codec is expected to gain, from a short measurement on the run's own workers and links."""

    comparison: CodecComparison
    """Of the run's codec with none."""
    link_measured: bool
    """Whether the bandwidth of its link is a measured one: else a codec's ``below`` would mean nothing, and is null."""
    probe: Probe
    """What was measured for it."""

    @property
    def plain(self) -> CodecStep:
        return self.comparison.steps[0]

    @property
    def coded(self) -> CodecStep:
        return self.comparison.steps[1]


@dataclass(frozen=True, kw_only=True)
class RunForecast:
    """What is expected of a run, before its first step: ``prediction.json`` is this dataclass, field by field."""

    row: PredictionRow | None = None
    """None where no profile of the machine was there."""
    basis: Basis | None = None
    """What ``row`` rests on."""
    codec: CodecForecast | None = None
    """Where a codec is in use."""
    made: str
    schema: Literal[2] = 2
    kind: Literal["forecast"] = "forecast"


def forecast_codec(settings: Settings, probe: Probe, transport: str, *, busy: bool = False) -> CodecForecast:
    """``transport`` is what the workers' messages go through; ``busy`` says that computing takes all cores."""
    servers = server_count(settings, build_strategy(settings.strategy))
    cluster = _cluster(settings, probe, transport, servers, busy=busy)
    layout = Layout(tuple(map(str, range(len(probe.shapes)))), probe.shapes)
    shape = JobShape(
        name="job",
        layout=layout,
        dtype=getattr(torch, probe.dtype),
        buffers=probe.buffers,
    )
    plain = Setup(
        strategy=settings.strategy,
        cluster=cluster,
        cost=_cost(settings, probe),
        shape=shape,
        coding=UNCODED,
        collective=settings.collective,
        servers=max(1, servers),
        samples=probe.samples,
    )
    where = link_in_question(plain)
    host = cluster.hosts[0]
    link = host.link if where == "network" else host.inside
    wire = LimitingLink(where=where, name="", bandwidth=link.bandwidth, latency=link.latency)
    coded = replace(plain, coding=coding_of(settings, probe, shape))
    measured = link.bandwidth < FASTEST and (link is not MEMORY)
    steps = compare_steps(plain, {short_codec(settings.codec): coded}, wire)
    if not measured:
        steps = tuple(replace(step, pays=None, below=None) for step in steps)
    return CodecForecast(
        comparison=CodecComparison(
            strategy=settings.strategy,
            workers=settings.workers,
            wire=wire,
            steps=steps,
        ),
        link_measured=measured,
        probe=probe,
    )


def _cost(settings: Settings, probe: Probe) -> StepCost:
    """Workers that wait for all others take as long as the slowest, and others as long as they do in the mean."""
    strategy = build_strategy(settings.strategy)
    step = max(probe.steps, key=lambda one: one.total)
    if strategy.served and strategy.staleness_bound != 0:
        step = reduce(add, probe.steps, StepBreakdown()) * (1 / len(probe.steps))
    return StepCost(samples=max(settings.batch_sizes), step=step, ready=probe.ready, spread=0.0)


def coding_of(settings: Settings, probe: Probe, shape: JobShape) -> CodecCosts:
    """As long as was measured: what its operators move tells how that divides among parts."""
    codec = build_codec(settings.codec)
    if probe.lengths:
        sizes = zip(shape.layout.names, shape.layout.shapes, probe.lengths, strict=True)
        parts = tuple((name, many / max(1, prod(size))) for name, size, many in sizes)
        codec = MeasuredCodec(codec=codec, lengths=parts, memory=codec.memory)
    costs = CodecCosts(codec=codec, timed=MemoryRate(1.0))
    counted = costs.reduction(shape.layout, shape.dtype, probe.coders).coding
    return replace(costs, scale=probe.coding / counted if counted else 1.0)


def _cluster(settings: Settings, probe: Probe, transport: str, servers: int, *, busy: bool) -> Cluster:
    """The workers' hosts, with the link that explains what the sums took."""
    several, shares = max(probe.nodes) > 0, transport.startswith(SHARED)
    name = "messages" if servers else "network" if several else "memory" if shares else "loopback"
    # All errors count alike, in seconds: what a link lets pass at once makes short sums too quick for any latency.
    longest = max(seconds for _, seconds in probe.sums)
    measured = [
        AveragedStep(sizes=(size,), added=seconds, beside=longest - seconds) for size, seconds in probe.sums
    ]
    fit = fit_link(name, probe.nodes, measured, collective=settings.collective)
    link = Link(bandwidth=fit.bandwidth, latency=fit.latency)
    # Inside a host, messages to servers go through memory as they are, and through sockets where a codec made them.
    inside = MEMORY if several or servers else link
    nodes = range(max(probe.nodes) + 1)
    workers, placed = Counter(probe.nodes), Counter(rank % len(nodes) for rank in range(servers))
    most = max(workers.values())
    backend: Backend = "shm" if shares else "gloo"
    contention = (*(1.0,) * (most - 1), BUSY) if busy and most > 1 else ()
    cluster = Cluster.of(
        Host(
            name=f"node-{node}",
            link=link,
            inside=inside,
            workers=workers[node],
            servers=placed[node],
            backend=backend,
            contention=contention,
        )
        for node in nodes
        if workers[node] or placed[node]
    )
    encrypts = bool(servers) and not several
    return replace(cluster, cipher=link.bandwidth / max(most, servers)) if encrypts else cluster

"""Setups for the tests of predicted steps."""

from dataclasses import replace

from paceline.clusters.cluster import Cluster, Device, Host, Link
from paceline.codecs.context import Layout
from paceline.costs.device import StepCost
from paceline.records.spans import StepBreakdown
from paceline.runtimes.virtual.shape import JobShape
from paceline.studies.predict.setup import Setup

LINK = Link(bandwidth=1.25e9, latency=5e-5)
SHAPE = JobShape(
    name="shape", layout=Layout.of_vectors(1_000, *(600_000,) * 18, 5_000), train_samples=1, test_samples=1
)
READY = tuple(1 - place / 20 for place in range(20))
STEP = StepBreakdown(data=0.001, forward=0.03, backward=0.06, apply=0.004)
COST = StepCost(samples=32, step=STEP, ready=READY, spread=0.0)


def make_setup(
    workers: int,
    strategy: str = "all-reduce",
    *,
    per_host: int = 1,
    link: Link = LINK,
    reduce_seconds: float = 0.0,
    cost: StepCost = COST,
    shape: JobShape = SHAPE,
    **changes,
) -> Setup:
    """Hosts that are all alike, the last one partly used."""
    device = Device(reduce_seconds=reduce_seconds)
    sizes = [per_host] * (workers // per_host) + [workers % per_host] * bool(workers % per_host)
    hosts = tuple(
        Host(name=f"h{place}", link=link, workers=size, device=device) for place, size in enumerate(sizes)
    )
    return Setup(strategy=strategy, cluster=Cluster.of(hosts), cost=cost, shape=shape, **changes)


def with_link(setup: Setup, link: Link) -> Setup:
    """The same on another network: every host has this link, and a single host has it inside."""
    hosts = setup.cluster.hosts
    changed = (
        [replace(hosts[0], inside=link)] if len(hosts) == 1 else [replace(host, link=link) for host in hosts]
    )
    return replace(setup, cluster=setup.cluster.with_hosts(changed))

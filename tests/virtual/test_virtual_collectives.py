"""A simulated run takes and moves what its collective's schedule says, and the better schedule wins."""

from itertools import pairwise

import pytest
from virtual_helpers import make_cluster, make_job, time_only, with_gradients

from paceline.cli.main import main
from paceline.clusters.cluster import Cluster, Device, Host, Link
from paceline.clusters.description import read_cluster
from paceline.codecs.context import Layout
from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.schedule import pipelined
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.shape import JobShape
from schedule_reference import schedule_bytes

UNEVEN = Cluster.of(
    (
        Host(name="a", workers=3, link=Link(bandwidth=1e6, latency=1e-3), device=Device(reduce_seconds=1e-6)),
        Host(name="b", workers=1, link=Link(bandwidth=3e5, latency=1e-2)),
        Host(name="c", workers=2, link=Link(bandwidth=1e6, latency=1e-3)),
    ),
    times=make_cluster(1).times,
)
LARGE = JobShape(name="large", layout=Layout.of_vectors(3_000_001), train_samples=800, test_samples=100)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=1"])
def test_spans_are_the_schedules_price_and_bytes_its_traffic(name, strategy) -> None:
    # One bucket of 3,000,001 parameters: no schedule cuts it evenly, and segments are of use where links would be idle.
    _, kept = time_only(UNEVEN, LARGE, strategy_name=strategy, collective=name, iterations=2)
    size = 4 * (LARGE.size + CONTROL)
    topology = Topology(UNEVEN)
    schedule = build_schedule(name, topology.workers)
    waves = pipelined(schedule, schedule.segments(size))
    assert waves.round_count > schedule.round_count or name in ("ring", "pairwise")
    seconds = AllReduceCosts(name, topology).price(size, 4).seconds
    for rank in range(6):
        steps = [record for record in kept.records[rank] if record.is_step]
        spans = [span.length for step in steps for span in step.spans if span.kind == "communicate"]
        assert spans == pytest.approx([seconds] * 2)
        assert [(step.sent, step.received) for step in steps] == [schedule_bytes(waves, size, rank, 4)] * 2


def communicating(cluster: Cluster, name: str, shape: JobShape) -> float:
    summary, _ = time_only(cluster, shape, detailed=False, collective=name, iterations=1)
    return summary.totals[0].seconds["communicate"]


def test_the_ring_wins_on_large_tensors_and_the_tree_on_small_ones_far_apart() -> None:
    small = JobShape(name="small", layout=Layout.of_vectors(1000), train_samples=800, test_samples=100)
    slow = make_cluster(16, bandwidth=1e6, latency=1e-6)
    far = make_cluster(16, bandwidth=1e9, latency=1e-2)
    assert communicating(slow, "ring", small) < communicating(slow, "tree", small)
    assert communicating(far, "tree", small) < communicating(far, "ring", small)


def test_a_hierarchy_takes_the_clusters_own_hosts() -> None:
    # 8 workers: on 2 hosts only 2 of them use the slow links, where a ring's neighbours alternate if spread.
    shape = JobShape(name="s", layout=Layout.of_vectors(1_000_000), train_samples=800, test_samples=100)
    together, apart = make_cluster(8, per_host=4), make_cluster(8)
    assert communicating(together, "hierarchical", shape) < 0.6 * communicating(apart, "hierarchical", shape)


def test_native_is_the_default_and_a_ring_costs_the_same_where_reducing_is_free() -> None:
    cluster = make_cluster(4, latency=1e-3)
    default, native, ring = (
        time_only(cluster, **choice)[0].seconds
        for choice in ({}, {"collective": "native"}, {"collective": "ring"})
    )
    assert default == native == pytest.approx(ring, rel=1e-6)


def test_the_collective_does_not_touch_the_mathematics() -> None:
    cluster = make_cluster(3)
    models = [with_gradients(make_job(), cluster, collective=name)[1].model for name in ("native", "tree")]
    for one, other in pairwise(models):
        assert all(one[key].equal(other[key]) for key in one)


def test_an_unknown_collective_is_a_mistake_before_anything_runs(capsys) -> None:
    with pytest.raises(UsageError, match="unknown collective 'rign'; did you mean 'ring'"):
        Settings(job=JobSpec(), epochs=1, collective="rign")
    assert main(["simulate", "--collective", "rign"]) == 2
    assert (
        "butterfly, halving-doubling, hierarchical, native, one-to-all, pairwise, ring, tree"
        in capsys.readouterr().err
    )


def test_the_collective_is_echoed_and_recorded(tmp_path, capsys) -> None:
    arguments = ["simulate", "--collective", "tree", "--no-gradients", "-i", "2", "--runs", str(tmp_path)]
    assert main(arguments) == 0
    assert "by tree" in "".join(capsys.readouterr())
    (config,) = tmp_path.glob("*/config.json")
    assert '"collective": "tree"' in config.read_text()


def test_a_cluster_says_how_fast_its_workers_reduce(tmp_path) -> None:
    inline = read_cluster("hosts=2,reduce=8 GB/s")
    assert inline.hosts[0].device.reduce_seconds == pytest.approx(1 / 8e9)
    assert read_cluster("hosts=2").hosts[0].device.reduce_seconds == 0
    file = tmp_path / "c.toml"
    file.write_text('[[hosts]]\nreduce = "4 GB/s"\n[[hosts]]\nname = "other"\n')
    assert [host.device.reduce_seconds for host in read_cluster(str(file)).hosts] == [1 / 4e9, 0.0]
    with pytest.raises(UsageError, match="reduce"):
        read_cluster("hosts=2,reduce=fast")

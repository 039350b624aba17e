"""Workers of one machine slow each other down, and a description can say by how much."""

import pytest

from collective_prices import predict_all_reduce
from paceline.clusters.cluster import Cluster, Host, Link, contention_factor
from paceline.clusters.description import read_cluster
from paceline.costs.stated import stated_costs
from paceline.errors import UsageError

LINK = Link(bandwidth=1e9, latency=1e-6)
TIMES = "data=1 ms,forward=2 ms,backward=4 ms,apply=1 ms"


def gradient_seconds(cluster: Cluster) -> float:
    return sum(stated_costs(cluster, [8] * cluster.workers, {}).gradient(0, 8, 0))


def test_a_host_counts_its_own_workers_and_a_cluster_all() -> None:
    """Two machines with two workers each slow each other down in pairs; two namespaces of one machine all four."""
    contention = (1.0, 1.5, 2.0, 3.0)
    apart = Cluster.of(tuple(Host(name=n, link=LINK, workers=2, contention=contention) for n in "ab"))
    one = Cluster.of(tuple(Host(name=n, link=LINK, workers=2) for n in "ab"), contention=contention)
    assert apart.slowdown(apart.hosts[0]) == 1.5
    assert one.slowdown(one.hosts[1]) == 3.0


@pytest.mark.parametrize(("workers", "factor"), [(1, 1.0), (2, 1.4), (3, 2.1), (5, 3.5)])
def test_beyond_what_is_known_it_goes_on_as_before(workers: int, factor: float) -> None:
    """Else a prediction for more workers than were calibrated would be that of as many as were."""
    assert contention_factor((1.0, 1.4, 2.1), workers) == pytest.approx(factor)


def test_the_parts_of_a_step_take_as_much_longer(tmp_path) -> None:
    """Inline for a host, in a file also for the whole cluster."""
    assert gradient_seconds(read_cluster(f"workers=2,contention=1/1.5,{TIMES}")) == pytest.approx(1.5 * 7e-3)
    file = tmp_path / "namespaces.toml"
    times = "\n".join(f'{part.replace("=", " = ")}"'.replace("= ", '= "') for part in TIMES.split(","))
    file.write_text(f"contention = [1, 1.5, 2]\n[times]\n{times}\n[[hosts]]\ncount = 3\n")
    assert gradient_seconds(read_cluster(str(file))) == pytest.approx(2 * 7e-3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contention=1.2/1.4", "begins with 1.2"),
        ("contention=1/0.9", r"contention\[1\] = '0.9': it must be a number, 1 or more"),
        ("contention=1/x", r"contention\[1\] = 'x': it must be a number"),
    ],
)
def test_factors_that_cannot_be_are_refused(text: str, says: str) -> None:
    """A worker alone is the measure, and contention helps nobody."""
    with pytest.raises(UsageError, match=says):
        read_cluster(f"workers=2,{text},{TIMES}")


def test_a_host_whose_workers_talk_over_gloo_pays_for_gloo() -> None:
    """A run with --backend gloo on one host is not one in shared memory: a ring's steps each cost a delay."""
    seconds = {
        backend: predict_all_reduce(
            "native", read_cluster(f"workers=3,inside-latency=1 ms,backend={backend}"), 4000
        )
        for backend in ("shm", "gloo")
    }
    assert seconds["gloo"] == pytest.approx(seconds["shm"] + 2e-3, rel=1e-2)
    with pytest.raises(UsageError, match="shm or gloo"):
        read_cluster("workers=3,backend=mpi")

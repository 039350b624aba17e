"""A cluster in the user's words becomes the cluster, or one sentence says where and why not."""

from pathlib import Path

import pytest

from paceline.clusters.cluster import MEMORY, Cluster, Host, Link
from paceline.clusters.description import DEFAULT_LINK, read_cluster
from paceline.errors import Mistake

INLINE = (
    "hosts=4,workers=2,bandwidth=1 Gbit/s,latency=50 us,forward=0.7 ms,backward=1.1 ms,apply=50 us,"
    "inside-bandwidth=8 GB/s"
)
FILE = """
name = "uneven"

[inside]
bandwidth = "8 GB/s"

[[hosts]]
count = 2
name = "fast"
workers = 2
bandwidth = "10 Gbit/s"
latency = "20 us"

[[hosts]]
names = ["old"]
speed = 0.5

[[hosts]]
name = "keeper"
workers = 0
servers = 2

[times]
forward = "0.7 ms"
backward = "1.1 ms"
jitter = 0.1
"""


def test_inline_description_sets_every_part() -> None:
    cluster = read_cluster(INLINE)
    assert [host.name for host in cluster.hosts] == ["host-0", "host-1", "host-2", "host-3"]
    assert cluster.workers == 8
    assert cluster.hosts[3].link.bandwidth == 125e6
    assert cluster.hosts[3].link.latency == pytest.approx(50e-6)
    assert cluster.hosts[0].inside == Link(bandwidth=8e9, latency=MEMORY.latency)
    times = (cluster.times.forward, cluster.times.backward, cluster.times.apply)
    assert times == pytest.approx((0.7e-3, 1.1e-3, 50e-6))


def test_file_sets_every_part(tmp_path: Path) -> None:
    path = tmp_path / "racks.toml"
    path.write_text(FILE)
    cluster = read_cluster(str(path))
    assert cluster.name == "uneven"
    assert [host.name for host in cluster.hosts] == ["fast-0", "fast-1", "old", "keeper"]
    assert [host.workers for host in cluster.hosts] == [2, 2, 1, 0]
    assert [host.device.speed for host in cluster.hosts] == [1, 1, 0.5, 1]
    assert cluster.hosts[2].link == DEFAULT_LINK
    assert cluster.times.jitter == 0.1


def test_ranks_fill_hosts_in_order_and_servers_go_where_they_are_offered_a_place(tmp_path: Path) -> None:
    path = tmp_path / "racks.toml"
    path.write_text(FILE)
    cluster = read_cluster(str(path))
    assert cluster.place_workers() == (0, 0, 1, 1, 2)
    assert cluster.place_servers(2) == (3, 3)
    with pytest.raises(Mistake, match=r"3 servers do not fit.*offer 2 places"):
        cluster.place_servers(3)
    assert read_cluster("hosts=2").place_servers(3) == (0, 1, 0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hosts=0", ["--cluster: hosts = '0'", "1 or more"]),
        ("hosts=2,workers=0", ["0 workers"]),
        ("hosts=two", ["'two'", "whole number"]),
        ("bandwidth=1 Gs", ["--cluster", "bandwidth", "'1 Gs'", "Gbit/s"]),
        ("bandwidth=-1 Gbit/s", ["bandwidth", "'-1 Gbit/s'", "not negative"]),
        ("bandwidth=0 Gbit/s", ["more than zero"]),
        ("latency=5 MB", ["latency", "'5 MB'", "50 us"]),
        ("bandwith=1 Gbit/s", ["'bandwith'", "did you mean 'bandwidth'"]),
        ("speed=0", ["speed", "more than 0"]),
        ("jitter=3", ["jitter", "between 0"]),
        ("start=1", ["start", "'1'", "50 us"]),
        ("steps=0", ["steps = '0'", "1 or more"]),
        ("start=2 s,dies=1 s", ["dies = 1 s", "after its start at 2 s"]),
        ("hosts=1,hosts=2", ["'hosts' is set twice"]),
        ("4 hosts", ["'4 hosts'", "key=value", ".toml"]),
    ],
)
def test_bad_inline_description_names_value_and_rule(text: str, parts: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        read_cluster(text)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[[hosts]]\nbandwith = '1 Gbit/s'", ["hosts[0].bandwith", "did you mean 'hosts[0].bandwidth'"]),
        ("[[host]]\nworkers = 1", ["'host'", "did you mean 'hosts'"]),
        ("[[hosts]]\nlatency = 5e-5", ["hosts[0].latency = 5e-05", "unit", "50 us"]),
        ("[[hosts]]\nworkers = true", ["hosts[0].workers = True", "whole number"]),
        ("[[hosts]]\ncount = 2\nnames = ['a']", ["hosts[0].names", "as many as count says, 2"]),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'a'", ["'a'", "name of its own"]),
        ("[hosts]\nworkers = 1", ["[[hosts]]"]),
        ("name = 'empty'", ["0 hosts"]),
        ("[[hosts]]\n[times]\nforwad = '1 ms'", ["times.forwad", "times.forward"]),
        ("[[hosts", ["is not TOML"]),
    ],
)
def test_bad_file_names_file_key_value_and_rule(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(Mistake) as caught:
        read_cluster(str(path))
    assert all(part in str(caught.value) for part in [str(path), *parts]), str(caught.value)


def test_hosts_whose_workers_come_late_or_go_early(tmp_path: Path) -> None:
    path = tmp_path / "fleeting.toml"
    path.write_text("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'b'\nstart = '0.15 s'\nsteps = 3\ndies = '2 s'")
    for host in (
        read_cluster(str(path)).hosts[1],
        *read_cluster("hosts=2,start=150 ms,steps=3,dies=2 s").hosts,
    ):
        assert (host.start, host.steps, host.dies) == (0.15, 3, 2.0)
        assert host.comings_and_goings == ["start", "steps", "dies"]
    assert read_cluster(str(path)).hosts[0].comings_and_goings == []


def test_missing_file_is_named() -> None:
    with pytest.raises(Mistake, match=r"nowhere\.toml.*No such file"):
        read_cluster("nowhere.toml")


def test_a_number_of_workers_that_is_not_the_clusters_is_refused() -> None:
    cluster = Cluster(hosts=(Host(name="a", link=DEFAULT_LINK, workers=3),))
    cluster.check_workers(3)
    with pytest.raises(Mistake, match="--workers 2 contradicts the cluster, which has 3"):
        cluster.check_workers(2)


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.toml")), ids=lambda path: path.stem)
def test_examples_can_be_read(path: Path) -> None:
    assert read_cluster(str(path)).times.forward

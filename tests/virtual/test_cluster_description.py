"""A cluster in the user's words becomes the cluster, or one sentence says where and why not."""

import math
import re
from pathlib import Path

import pytest

from paceline.clusters.catalogue import all_devices, all_networks
from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link, StepTimes
from paceline.clusters.description import DEFAULT_LINK, read_cluster
from paceline.clusters.toml_reader import find_line
from paceline.costs.topology import Topology
from paceline.errors import UsageError

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
    step = cluster.times.step
    assert (step.forward, step.backward, step.apply) == pytest.approx((0.7e-3, 1.1e-3, 50e-6))


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
    assert Topology(cluster).workers == (0, 0, 1, 1, 2)
    assert cluster.place_servers(2) == (3, 3)
    with pytest.raises(UsageError, match=r"3 servers do not fit.*offer 2 places"):
        cluster.place_servers(3)
    assert read_cluster("hosts=2").place_servers(3) == (0, 1, 0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hosts=0", ["cluster: hosts = '0'", "1 or more"]),
        ("hosts=2,workers=0", ["0 workers"]),
        ("hosts=two", ["'two'", "whole number"]),
        ("hosts=1000000000000", ["hosts is too large", "at most 1,000,000"]),
        ("workers=1000000000000", ["workers is too large", "at most 1,000,000"]),
        ("bandwidth=1 Gs", ["cluster", "bandwidth", "'1 Gs'", "Gbit/s"]),
        ("bandwidth=-1 Gbit/s", ["bandwidth", "'-1 Gbit/s'", "more than zero"]),
        ("bandwidth=0 Gbit/s", ["more than zero"]),
        ("latency=5 MB", ["latency", "'5 MB'", "50 us"]),
        ("bandwith=1 Gbit/s", ["'bandwith'", "did you mean 'bandwidth'"]),
        ("speed=0", ["speed", "more than 0"]),
        ("jitter=3", ["jitter", "between 0"]),
        ("start=1", ["start", "'1'", "50 us"]),
        ("steps=0", ["steps = '0'", "1 or more"]),
        ("start=2 s,dies=1 s", ["dies = 1 s", "after its start at 2 s"]),
        ("hosts=1,hosts=2", ["'hosts' is set twice"]),
        ("device=a1000", ["device", "unknown device 'a1000'", "'a100'", "needs its speed"]),
        ("network=25gbt", ["cluster: network", "'25gbt'", "Gbit/s"]),
        ("network=infinband", ["unknown network 'infinband'", "did you mean 'infiniband'"]),
        ("network=25gbit,bandwidth=1 Gbit/s", ["network = '25gbit'", "so does bandwidth", "leave one"]),
        ("inside-network=nvlnk3", ["inside-network", "did you mean 'nvlink3'"]),
        ("4 hosts", ["'4 hosts'", "key=value", ".toml"]),
    ],
)
def test_bad_inline_description_names_value_and_rule(text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
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
        ("[[hosts]]\n[times]\nforward = '1 ms'", ["times.backward is missing", "backward = '2 ms'"]),
        ("[[hosts", ["is not TOML"]),
        ("x = " + "[" * 3000 + "]" * 3000, ["is not TOML"]),
        ("x = " + "9" * 5000, ["is not TOML"]),
        ("[[hosts]]\nspeed = 1" + "0" * 400, ["hosts[0].speed", "a number"]),
    ],
)
def test_bad_file_names_file_key_value_and_rule(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_cluster(str(path))
    assert all(part in str(caught.value) for part in [str(path), *parts]), str(caught.value)


LINED = """name = "lined"

[inside]
bandwidth = "8 GB/s"  # shared

[[hosts]]
names = [
    "a",
    "b",
]
bandwidth = "10 Gbit/s"

[[hosts]]
name = "c"
workers = 2
device = "a100"

[times]
forward = "1 ms"
backward = "2 ms"
"""


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ('"8 GB/s"', '"8 GB/min"', "line 4: inside.bandwidth: '8 GB/min' is not a bandwidth"),
        ('"10 Gbit/s"', '"10 Gb"', "line 11: hosts[0].bandwidth: '10 Gb' may be bits or bytes"),
        (
            '"10 Gbit/s"',
            '"-1 Gbit/s"',
            "line 11: hosts[0].bandwidth: '-1 Gbit/s' is not a bandwidth: it must",
        ),
        ('"10 Gbit/s"', "10", "line 11: hosts[0].bandwidth = 10: write the unit, in quotes"),
        ("workers = 2", "workers = -2", "line 15: hosts[1].workers = -2"),
        (
            "workers = 2",
            "wokers = 2",
            "line 15: unknown key 'hosts[1].wokers'; did you mean 'hosts[1].workers'",
        ),
        ("workers = 2", 'start = "2 s"\ndies = "1 s"', "line 13: dies = 1 s on host 'c'"),
        ('"a100"', '"a1000"', "line 16: hosts[1].device: unknown device 'a1000'"),
        ('forward = "1 ms"', "times = 1", "line 19: unknown key 'times.times'"),
        ('"1 ms"', "[1, 2]", "line 19: times.forward = [1, 2]"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(tmp_path: Path, good: str, bad: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(LINED)
    assert len(read_cluster(str(path)).hosts) == 3
    assert LINED.count(good) == 1
    path.write_text(LINED.replace(good, bad))
    with pytest.raises(UsageError) as caught:
        read_cluster(str(path))
    assert str(caught.value).startswith(f"{path}, {says}"), str(caught.value)


def test_lines_are_found_in_every_way_to_write_a_table() -> None:
    text = """# a comment with [brackets] and = signs
a.b = 1
d = { e = 3, f = { g = 4 } }
h = [
    { i = 5 },  # [[j]]
]
[[k.l]]
m = 6
[[k.l]]
[n]
o = 7
"""
    expected = {
        "a.b": 2,
        "d.f.g": 3,
        "h[0].i": 4,
        "k.l[0].m": 8,
        "k.l[1].absent": 9,
        "n.o": 11,
        "absent": None,
    }
    assert {path: find_line(text, path) for path in expected} == expected


def test_names_of_the_catalogue_bring_their_figures() -> None:
    cluster = read_cluster("hosts=2,workers=8,device=A100,network=25GbE,inside-network=nvlink3,latency=9 us")
    host = cluster.hosts[1]
    assert host.device.sheet is all_devices()["a100"]
    assert host.link == Link(bandwidth=25e9 / 8, latency=9e-6)
    assert host.inside == Link(bandwidth=8 * 300e9, latency=all_networks()["nvlink3"].latency)


@pytest.mark.parametrize("text", ["device=my-old-box", "device=a1000,speed=2", "device=l40"])
def test_a_device_may_have_a_name_of_its_own(text: str) -> None:
    device = read_cluster(text).hosts[0].device
    assert device.sheet is None
    assert device.name in text


def test_hosts_whose_workers_come_late_or_go_early(tmp_path: Path) -> None:
    path = tmp_path / "fleeting.toml"
    path.write_text("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'b'\nstart = '0.15 s'\nsteps = 3\ndies = '2 s'")
    for host in (
        read_cluster(str(path)).hosts[1],
        *read_cluster("hosts=2,start=150 ms,steps=3,dies=2 s").hosts,
    ):
        assert (host.start, host.steps, host.dies) == (0.15, 3, 2.0)
        assert host.churn == ["start", "steps", "dies"]
    assert read_cluster(str(path)).hosts[0].churn == []


def test_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml.*No such file"):
        read_cluster("nowhere.toml")


def test_a_number_of_workers_that_is_not_the_clusters_is_refused() -> None:
    cluster = Cluster.of((Host(name="a", link=DEFAULT_LINK, workers=3),))
    cluster.check_workers(3)
    with pytest.raises(UsageError, match="2 workers contradict the cluster, which has 3"):
        cluster.check_workers(2)


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(Path("examples").glob("*.toml")) if "\nask = " not in path.read_text()],
    ids=lambda path: path.stem,
)
def test_examples_can_be_read(path: Path) -> None:
    assert read_cluster(str(path)).times.step


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (Link, {"bandwidth": 0.0}, "bandwidth=0.0 is out of range; it must be more than 0"),
        (Link, {"bandwidth": math.inf}, "bandwidth=inf is out of range"),
        (Link, {"latency": -1.0}, "latency=-1.0 is out of range; it must be at least 0"),
        (Device, {"speed": 0.0}, "speed=0.0 is out of range; it must be more than 0"),
        (Device, {"reduce_seconds": math.nan}, "reduce_seconds=nan is out of range"),
        (Device, {"memory": -1.0}, "memory=-1.0 is out of range"),
        (Host, {"workers": -1}, "workers=-1 is out of range; it must be at least 0"),
        (Host, {"servers": -1}, "servers=-1 is out of range"),
        (Host, {"start": -1.0}, "start=-1.0 is out of range"),
        (Host, {"steps": 0}, "steps=0 is out of range; it must be at least 1"),
        (Host, {"dies": math.inf}, "dies=inf is out of range"),
        (Host, {"backend": "nccl"}, "backend=nccl is unknown; choose shm or gloo"),
        (StepTimes, {"jitter": 3.0}, "jitter=3.0 is out of range; it must be between 0 (none) and 2"),
        (StepTimes, {"serve": -1.0}, "serve=-1.0 is out of range"),
        (StepTimes, {"evaluate": -1.0}, "evaluate=-1.0 is out of range"),
    ],
)
def test_a_cluster_made_in_python_is_held_to_the_same_limits(kind, settings, words):
    """A negative latency would make a run end before it starts."""
    needed = {Link: {"bandwidth": 1e9, "latency": 0.0}, Host: {"name": "a", "link": MEMORY}}.get(kind, {})
    with pytest.raises(UsageError, match=re.escape(words)):
        kind(**(needed | settings))

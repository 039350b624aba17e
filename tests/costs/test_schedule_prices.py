"""Schedules on uneven links, in segments, among many workers: by hand, and by the slow way."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_prices import predict_all_reduce, uniform_cluster
from paceline.clusters.cluster import Cluster, Device, Host, Link
from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.schedule import pipelined
from paceline.collectives.traffic import traffic_of_all
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.network import FlowNetwork
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.runtimes.virtual.timeline import Timeline, run_transfers
from schedule_reference import schedule_bytes

MB = 1_000_000
INSIDE = Link(bandwidth=1e9, latency=1e-4)


def host(name: str, workers: int = 1, mbs: float = 100, latency: float = 1e-3, reduce: float = 0.0) -> Host:
    link = Link(bandwidth=mbs * MB, latency=latency)
    return Host(name=name, link=link, workers=workers, inside=INSIDE, device=Device(reduce_seconds=reduce))


def places(*hosts: Host) -> Topology:
    return Topology(Cluster.of(hosts))


def price(name: str, topology: Topology, size: int):
    return AllReduceCosts(name, topology).price(size, 1)


def test_only_those_wait_for_a_slow_link_that_need_what_comes_through_it() -> None:
    # Tree of 4, rank 3 at 10 MB/s with 5 ms: 3 -> 2 while 1 -> 0, then 2 -> 0. Back, 0 sends to 2 and to 1 at once,
    # through its one link, and then 2 -> 3.
    topology = places(host("a"), host("b"), host("c"), host("d", mbs=10, latency=5e-3))
    slow, fast, both = 5e-3 + 0.08, 1e-3 + 0.008, 1e-3 + 0.016
    assert price("tree", topology, MB * 8 // 10).seconds == pytest.approx(2 * slow + fast + both)
    # A ring's 6 messages of 0.2 MB each way are one behind the other on the slow link, and no delay adds up.
    ring = price("ring", topology, MB * 8 // 10).seconds
    assert 6 * 0.02 < ring < 6 * (0.02 + 5e-3) * 0.9


def test_workers_of_a_host_share_its_link() -> None:
    # Butterfly on 2 hosts of 2: the first swap stays inside (2 messages each way through 1 GB/s, in both directions
    # 2 tensors), the second has both workers of a host send 8 MB each through its 100 MB/s.
    topology = places(host("a", 2), host("b", 2))
    inside, across = 1e-4 + 0.016, 1e-3 + 0.16
    assert price("butterfly", topology, 8 * MB).seconds == pytest.approx(inside + across)


def test_one_to_all_is_bound_by_the_masters_link_or_by_a_slow_worker() -> None:
    others = [host(f"h{i}") for i in range(3)]
    assert price("one-to-all", places(host("m"), *others), MB).seconds == pytest.approx(2 * (1e-3 + 0.03))
    # At 400 MB/s the master needs 7.5 ms for the 3 MB, and a worker 10 ms for its own.
    fast = places(host("m", mbs=400), *others)
    assert price("one-to-all", fast, MB).seconds == pytest.approx(2 * (1e-3 + 0.01))


def test_reducing_takes_as_long_as_the_host_that_does_it_needs() -> None:
    # Only the master reduces: 3 MB come together in 30 ms; at 20 ns a byte, reducing them takes 60 ms.
    others = [host(f"h{i}", reduce=1e-6) for i in range(3)]
    slow = places(host("m", reduce=20e-9), *others)
    assert price("one-to-all", slow, MB).seconds == pytest.approx(1e-3 + 0.03 + 0.06 + 1e-3 + 0.03)


def test_the_ring_is_the_native_ring_where_reducing_is_free() -> None:
    topology = places(host("a", 3), host("b", 1, mbs=40), host("c", 2, latency=4e-3))
    assert price("ring", topology, 6 * MB) == AllReduceCosts("native", topology).price(6 * MB, 1)


def test_native_pays_for_reducing_only_where_that_is_slower_than_the_link() -> None:
    # 4 hosts at 10 ns a byte, 8 MB: 6 rounds of 1 ms and 20 ms; reducing 2 MB takes 10 ms, or 50.
    hidden, shown = (places(*[host(f"h{i}", reduce=c) for i in range(4)]) for c in (5e-9, 25e-9))
    assert AllReduceCosts("native", hidden).price(8 * MB, 4).seconds == pytest.approx(6 * 0.021)
    assert AllReduceCosts("native", shown).price(8 * MB, 4).seconds == pytest.approx(6 * 0.021 + 3 * 0.03)
    # A pair that swaps half a megabyte reduces all of it afterwards.
    pair = places(host("a", reduce=5e-9), host("b", reduce=5e-9))
    assert AllReduceCosts("native", pair).price(MB // 2, 4).seconds == pytest.approx(1e-3 + 0.005 + 0.0025)


def test_a_schedule_for_one_or_of_nothing_is_free() -> None:
    for name in SCHEDULES:
        assert price(name, places(host("a")), MB).seconds == 0
        assert price(name, places(host("a"), host("b")), 0).seconds == 0


clusters = st.lists(
    st.builds(
        host,
        name=st.just(""),
        workers=st.integers(1, 3),
        mbs=st.sampled_from([10, 100]),
        latency=st.sampled_from([1e-4, 1e-2]),
        reduce=st.sampled_from([0.0, 3e-9, 2e-7]),
    ),
    min_size=1,
    max_size=4,
).map(lambda hosts: places(*[host_named(one, f"h{i}") for i, one in enumerate(hosts)]))


def host_named(one: Host, name: str) -> Host:
    return Host(name=name, link=one.link, workers=one.workers, inside=one.inside, device=one.device)


@given(st.sampled_from(sorted(SCHEDULES)), clusters, st.integers(1, 10**7), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_segments_are_counted_as_the_waves_that_are_executed(name, topology, items, segments) -> None:
    schedule = build_schedule(name, topology.workers)
    waves, size = pipelined(schedule, segments), 4 * items
    assert waves.round_count == (schedule.round_count + segments - 1 if schedule.rounds else 0)
    assert traffic_of_all(schedule, size, 4, segments) == [
        schedule_bytes(waves, size, rank, 4) for rank in range(schedule.workers)
    ]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_flows_of_a_schedule_take_as_long_as_its_price(name) -> None:
    topology = places(host("a", 3, reduce=1e-8), host("b", 1, mbs=30), host("c", 2, latency=4e-3))
    costs = AllReduceCosts(name, topology)
    transfers = [(0.5, costs.price(size, 4)) for size in (MB, 3 * MB)]
    found: dict[bool, list] = {True: [], False: []}
    for disturbed, intervals in found.items():
        timeline = Timeline(FlowNetwork(topology.capacities))
        if disturbed:  # an event in the middle that does nothing: the transfers must go the long way
            timeline.at(0.51, lambda _: None)
        run_transfers(timeline, transfers, intervals.extend)
        while timeline.step():
            pass
    assert sum(found[True], ()) == pytest.approx(sum(found[False], ()), rel=1e-9)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_thousand_workers_are_priced_without_looking_at_millions_of_transfers(name) -> None:
    cluster = uniform_cluster(1000, Link(bandwidth=1e9, latency=1e-5), reduce_seconds=1e-10)
    begun = time.process_time()
    costs = AllReduceCosts(name, Topology(cluster))
    seconds = costs.price(100 * MB, 4).seconds
    sent = sum(sent for sent, _ in costs.traffic(100 * MB, 4))
    assert time.process_time() - begun < 2
    assert seconds > 0.19
    assert sent >= 2 * 999 * 100 * MB


def test_predictions_for_a_benchmark() -> None:
    hosts = uniform_cluster(4, Link(bandwidth=100e6, latency=1e-3))
    assert predict_all_reduce("ring", hosts, 4 * MB) == pytest.approx(6 * 0.011)
    assert predict_all_reduce("native", hosts, 4 * MB) == pytest.approx(6 * 0.011)
    one = uniform_cluster(1, Link(bandwidth=1.0, latency=1.0), per_host=4, inside=INSIDE)
    assert predict_all_reduce("ring", one, 4 * MB) == pytest.approx(6 * (1e-4 + 0.004))
    with pytest.raises(UsageError, match="did you mean 'ring'"):
        predict_all_reduce("rings", hosts, MB)

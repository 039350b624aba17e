"""Links share fairly, and collectives cost what their closed forms say."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.costs.collectives import AllReduceCosts, Price, tree_broadcast
from paceline.costs.network import Flow, FlowNetwork
from paceline.costs.topology import Topology
from paceline.runtimes.virtual.timeline import Timeline, run_transfers

MB = 1_000_000


def ring_all_reduce(topology: Topology, size: int) -> Price:
    return AllReduceCosts("native", topology).price(size, 4)


def cluster(*workers: int, bandwidth: float = 100e6, latency: float = 1e-3) -> Cluster:
    inside = Link(bandwidth=1e9, latency=1e-4)
    link = Link(bandwidth=bandwidth, latency=latency)
    return Cluster.of(
        tuple(Host(name=f"h{i}", link=link, workers=n, inside=inside) for i, n in enumerate(workers))
    )


def run_all(network: FlowNetwork) -> None:
    while network.next_end() < inf:
        network.advance(network.next_end())


def test_two_flows_into_one_link_take_twice_as_long() -> None:
    network, ends = FlowNetwork([100.0, 100.0, 100.0]), []
    network.start(0.0, 50.0, {0: 1, 2: 1}, ends.append)
    network.start(0.0, 50.0, {1: 1, 2: 1}, ends.append)
    run_all(network)
    assert ends == [1.0, 1.0]


def test_a_flow_that_ends_leaves_its_share_to_the_other() -> None:
    network, ends = FlowNetwork([100.0]), []
    network.start(0.0, 50.0, {0: 1}, ends.append)
    network.start(0.5, 100.0, {0: 1}, ends.append)
    run_all(network)
    # Alone until 0.5 the first is done then; had it been longer they would share.
    assert ends == [0.5, 1.5]
    network, ends = FlowNetwork([100.0]), []
    network.start(0.0, 100.0, {0: 1}, ends.append)
    network.start(0.5, 100.0, {0: 1}, ends.append)
    run_all(network)
    assert ends == [1.5, 2.0]


def flows_of(network: FlowNetwork) -> list[Flow]:
    network.next_end()  # shares the links
    found = {number: flow for users in network._users.values() for number, flow in users.items()}
    return [found[number] for number in sorted(found)]


def test_who_is_limited_elsewhere_leaves_the_rest_to_others() -> None:
    network = FlowNetwork([10.0, 100.0])
    slow = network.start(0.0, 1.0, {0: 1, 1: 1}, lambda _: None)
    fast = network.start(0.0, 1.0, {1: 1}, lambda _: None)
    assert flows_of(network) == [slow, fast]
    assert (slow.group.rate, fast.group.rate) == (10.0, 90.0)


flow = st.tuples(
    st.floats(0.0, 5.0),
    st.floats(1.0, 100.0),
    st.dictionaries(st.integers(0, 4), st.integers(1, 3), min_size=1, max_size=3),
)


@given(
    st.lists(st.floats(1.0, 50.0), min_size=5, max_size=5),
    st.lists(flow, min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_every_byte_arrives_no_link_is_overfull_and_nobody_could_have_more(capacities, flows) -> None:
    network, ends = FlowNetwork(capacities), []
    waiting = sorted(flows, key=lambda item: item[0])
    carried, now = 0.0, 0.0

    def pass_time(until: float) -> None:
        nonlocal carried, now
        carried += sum(item.group.rate for item in flows_of(network)) * (until - now)
        now = until

    while waiting or not network.idle:
        if waiting and waiting[0][0] < network.next_end():
            start, size, crosses = waiting.pop(0)
            pass_time(start)
            network.start(start, size, crosses, ends.append)
        else:
            pass_time(network.next_end())
            network.advance(now)
        load = [sum(f.group.rate * f.crosses.get(link, 0) for f in flows_of(network)) for link in range(5)]
        assert all(used <= full * (1 + 1e-9) for used, full in zip(load, capacities, strict=True))
        for f in flows_of(network):
            # Max-min fair: each flow crosses a full link on which nobody is faster.
            assert any(
                load[link] >= capacities[link] * (1 - 1e-9)
                and all(
                    g.group.rate <= f.group.rate * (1 + 1e-9) for g in flows_of(network) if link in g.crosses
                )
                for link in f.crosses
            )
    assert len(ends) == len(flows)
    assert carried == pytest.approx(sum(size for _, size, _ in flows))


def test_ring_on_uniform_links_by_hand() -> None:
    # 4 hosts, 8 MB: 6 steps of 1 ms and 2 MB at 100 MB/s.
    price = ring_all_reduce(Topology(cluster(1, 1, 1, 1)), 8 * MB)
    assert price.seconds == pytest.approx(6 * (1e-3 + 0.02))


def test_a_pair_swaps_what_is_small_in_one_message() -> None:
    # 2 hosts at 100 MB/s: 0.5 MB each way and one delay; 4 MB go round in two messages, each of half.
    pair = Topology(cluster(1, 1))
    assert ring_all_reduce(pair, MB // 2).seconds == pytest.approx(1e-3 + 0.005)
    assert ring_all_reduce(pair, 4 * MB).seconds == pytest.approx(2 * (1e-3 + 0.02))


def test_ring_crosses_a_hosts_link_once_each_way() -> None:
    # 2 hosts of 3 workers: 10 steps, 1/6 each; a host's link carries one edge, its inside link two.
    price = ring_all_reduce(Topology(cluster(3, 3)), 6 * MB)
    # A message that crosses costs 11 ms and one that stays 2.1 ms; no rank waits for others than its neighbour, so
    # that a chunk which goes round in 6 rounds costs 2 of the one and 4 of the other, and the last 4 stay near.
    assert 10 * 0.01 < price.seconds < 2 * (1e-3 + 0.01) / 6 * 10 + 4 * 2.1e-3 / 6 * 10 + 10 * 0.01
    (stage,) = price.stages
    assert dict(stage.crosses) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 2}


def test_workers_of_one_host_share_its_memory_and_meet_twice() -> None:
    # 4 workers through 1 GB/s: two meetings of 0.1 ms, and 6 MB per worker at 250 MB/s.
    price = ring_all_reduce(Topology(cluster(4)), 4 * MB)
    assert price.seconds == pytest.approx(2 * 1e-4 + 6 * 0.004)


def test_ring_is_as_slow_as_its_slowest_edge_but_waits_for_its_latency_only_where_it_must() -> None:
    hosts = cluster(1, 1, 1).hosts
    slow = Host(name="slow", link=Link(bandwidth=10e6, latency=5e-3), workers=1)
    price = ring_all_reduce(Topology(Cluster.of((*hosts, slow))), 8 * MB)
    # Six messages of 2 MB through 10 MB/s one behind the other; a message's delay passes while the one before it
    # is on its way, except that what comes in through one slow edge leaves through the other.
    assert 6 * 0.2 + 5e-3 < price.seconds < 6 * (5e-3 + 0.2)


def test_broadcast_by_hand() -> None:
    # 5 hosts: 3 rounds of the whole message. 4 workers on one host: 2 delays, 3 copies through its memory.
    assert tree_broadcast(Topology(cluster(1, 1, 1, 1, 1)), MB).seconds == pytest.approx(3 * (1e-3 + 0.01))
    assert tree_broadcast(Topology(cluster(4)), MB).seconds == pytest.approx(2e-4 + 0.003)
    both = tree_broadcast(Topology(cluster(2, 2)), MB).seconds
    assert both == pytest.approx((1e-3 + 0.01) + (1e-4 + 0.001))


@pytest.mark.parametrize("pricer", [ring_all_reduce, tree_broadcast])
def test_one_worker_or_nothing_to_send_is_free(pricer) -> None:
    assert pricer(Topology(cluster(1)), MB).seconds == 0
    assert pricer(Topology(cluster(1, 1)), 0).seconds == 0


@pytest.mark.parametrize("workers", [(1, 1, 1, 1), (3, 2), (4,), (1, 5, 2)])
@pytest.mark.parametrize("pricer", [ring_all_reduce, tree_broadcast])
def test_flows_take_as_long_as_the_closed_form(workers, pricer) -> None:
    topology = Topology(cluster(*workers))
    transfers = [(0.5, pricer(topology, 3 * MB)), (0.51, pricer(topology, MB)), (9.0, pricer(topology, MB))]

    def times(disturbed: bool):
        timeline, found = Timeline(FlowNetwork(topology.capacities)), []
        if disturbed:  # an event in the middle that does nothing: the transfers must go the long way
            timeline.at(0.6, lambda _: None)
        run_transfers(timeline, transfers, found.extend)
        assert bool(found) != disturbed
        while timeline.step():
            pass
        return found

    assert sum(times(disturbed=True), ()) == pytest.approx(sum(times(disturbed=False), ()), rel=1e-12)


def test_a_collective_shares_with_a_message() -> None:
    topology = Topology(cluster(1, 1, latency=0.0))
    timeline, found, ends = Timeline(FlowNetwork(topology.capacities)), [], []
    way = topology.between(0, 1)
    # The ring moves 1 MB over each link at 50 MB/s while the message of 1 MB does the same.
    timeline.at(0.0, lambda now: timeline.network.start(now, MB, way.crosses, ends.append))
    run_transfers(timeline, [(0.0, ring_all_reduce(topology, MB))], found.extend)
    while timeline.step():
        pass
    assert ends == [pytest.approx(0.02)]
    assert found == [(0.0, pytest.approx(0.02))]

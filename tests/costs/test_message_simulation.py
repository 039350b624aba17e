"""Schedules played message by message: the price of rounds where no rank can run ahead, by hand elsewhere."""

import pytest
from closed_forms import CLOSED_FORMS, Uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_prices import uniform_cluster
from paceline.clusters.cluster import Link
from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.schedule import chunk_bounds
from paceline.costs.message_simulation import simulate_messages
from paceline.costs.topology import Topology
from schedule_reference import schedule_bytes

MB = 1_000_000
ALPHA, BETA, GAMMA = 1e-4, 1e-8, 3e-10


def hosts(count: int, reduce: float = GAMMA) -> Topology:
    link = Link(bandwidth=1 / BETA, latency=ALPHA)
    return Topology(uniform_cluster(count, link, reduce_seconds=reduce))


def play(name: str, topology: Topology, size: int, segments: int = 1) -> float:
    return simulate_messages(build_schedule(name, topology.workers), topology, size, 4, segments)


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "butterfly", "halving-doubling", "hierarchical"])
def test_where_all_ranks_are_in_every_round_it_is_the_closed_form(name, workers):
    link = Uniform(latency=ALPHA, byte_seconds=BETA, reduce_seconds=GAMMA)
    assert play(name, hosts(workers), 8 * MB) == pytest.approx(CLOSED_FORMS[name](workers, 8 * MB, link))


@pytest.mark.parametrize("name", ["tree", "one-to-all"])
def test_two_ranks_leave_no_room_to_run_ahead(name):
    link = Uniform(latency=ALPHA, byte_seconds=BETA, reduce_seconds=GAMMA)
    assert play(name, hosts(2), MB) == pytest.approx(CLOSED_FORMS[name](2, MB, link))


def test_a_rank_that_need_not_wait_shares_the_link_of_those_who_are_behind():
    # Butterfly of 3: rank 1's swap leaves while rank 2 folds, so 2 MB enter rank 0 together; then 2 MB leave it.
    # Rounds that wait for each other would take 3 times 10 ms instead of 4.
    found = play("butterfly", hosts(3, reduce=0.0), MB)
    assert found == pytest.approx(2 * (ALPHA + 0.02))


def test_children_of_a_tree_share_their_parents_link():
    # Tree of 4 on the way back: 0 sends to 2 and at once to 1, 20 ms together; only then 2 can send to 3. On the way
    # to 0 both pairs send at the same time, and then 2 sends: 10 ms each.
    found = play("tree", hosts(4, reduce=0.0), MB)
    assert found == pytest.approx(0.01 + 0.01 + 0.02 + 0.01 + 4 * ALPHA, rel=1e-3)


def test_messages_of_a_pair_hide_each_others_latency():
    # Two segments of 1 MB down a tree of 2: the second one's latency passes while the first is on its way.
    found = play("tree", hosts(2, reduce=0.0), 2 * MB, segments=2)
    assert found == pytest.approx(ALPHA + 0.01 + max(ALPHA, 0.01) + 0.01, rel=0.02)


@given(
    st.sampled_from(sorted(SCHEDULES)), st.integers(1, 7), st.integers(0, 10**6), st.sampled_from([1, 2, 5])
)
@settings(max_examples=60, deadline=None)
def test_no_link_carries_more_than_it_can_and_everything_arrives(name, workers, items, segments):
    schedule, topology = build_schedule(name, [*range(workers)]), hosts(workers)
    seconds = simulate_messages(schedule, topology, 4 * items, 4, segments)
    busiest = max(max(schedule_bytes(schedule, 4 * items, rank, 4)) for rank in range(workers))
    slack = 4 * schedule.round_count * (len(chunk_bounds(items, schedule.chunks)) + segments)
    assert seconds >= (busiest - slack) * BETA
    assert (seconds > 0) == (workers > 1 and items > 0)


def test_processes_of_a_host_share_its_memory():
    inside = Link(bandwidth=2 / BETA, latency=ALPHA)
    cluster = uniform_cluster(1, Link(bandwidth=1.0, latency=1.0), per_host=2, inside=inside)
    assert play("butterfly", Topology(cluster), MB) == pytest.approx(ALPHA + MB * BETA)
    assert play("tree", Topology(cluster), MB) == pytest.approx(2 * (ALPHA + MB * BETA / 2))

"""Schedules cost what is derived on paper, never less than must be moved, and the published figures come out."""

from math import inf

import pytest
from closed_forms import CLOSED_FORMS, Uniform, hierarchical
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_prices import uniform_cluster
from paceline.clusters.cluster import Link
from paceline.collectives import SCHEDULES, build_schedule, find_schedule
from paceline.collectives.traffic import bandwidth_use, busbw, lower_bound_bytes
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.schedules import ScheduleTimer
from paceline.costs.topology import Topology

rates = st.builds(
    Uniform,
    latency=st.sampled_from([0.0, 1e-5, 1e-3]),
    byte_seconds=st.sampled_from([1e-10, 1e-8]),
    reduce_seconds=st.sampled_from([0.0, 1e-10, 5e-8]),
)
names = st.sampled_from(sorted(SCHEDULES))
ANY = ("hierarchical", "one-to-all", "pairwise", "ring")
"""Those whose closed form holds for any number of workers, not only for powers of two."""
derived = st.one_of(
    st.tuples(st.sampled_from(ANY), st.integers(1, 64)),
    st.tuples(st.sampled_from(sorted(CLOSED_FORMS)), st.sampled_from([1, 2, 4, 8, 16, 32, 64])),
)


def topology(hosts: int, link: Uniform, per_host: int = 1, inside: Uniform | None = None) -> Topology:
    within = inside or link
    return Topology(
        uniform_cluster(
            hosts,
            Link(bandwidth=1 / link.byte_seconds, latency=link.latency),
            per_host=per_host,
            inside=Link(bandwidth=1 / within.byte_seconds, latency=within.latency),
            reduce_seconds=link.reduce_seconds,
        )
    )


def price(name: str, places: Topology, size: int, element: int = 1) -> float:
    return AllReduceCosts(name, places).price(size, element).seconds


@given(derived, st.integers(1, 1000), rates)
@settings(max_examples=100, deadline=None)
def test_a_schedules_price_is_its_closed_form_on_uniform_links(case, parts, link) -> None:
    name, workers = case
    size = parts * workers
    assert price(name, topology(workers, link), size) == pytest.approx(
        CLOSED_FORMS[name](workers, size, link)
    )


in_step = derived.filter(lambda case: case[0] != "pairwise")
"""Ranks that exchange pairwise get out of step where messages differ, and then share links in some rounds."""


@given(in_step, st.integers(1, 500), rates)
@settings(max_examples=60, deadline=None)
def test_what_does_not_divide_costs_at_most_an_element_a_chunk_less_or_two_more(case, size, link):
    name, workers = case
    found = price(name, topology(workers, link), size)
    chunks = build_schedule(name, range(workers)).chunks
    form = CLOSED_FORMS[name]
    least, most = form(workers, max(0, size - chunks), link), form(workers, size + 2 * chunks, link)
    small = size < chunks  # empty chunks are not sent at all
    assert (0 if small else least * (1 - 1e-9)) <= found <= most * (1 + 1e-9)


@given(st.integers(2, 16), st.integers(100_000, 400_000), rates)
@settings(max_examples=20, deadline=None)
def test_pairs_that_get_out_of_step_cost_little_more_where_messages_are_long(workers, elements, link):
    found = price("pairwise", topology(workers, link), 4 * elements * workers + 4, element=4)
    assert found == pytest.approx(
        CLOSED_FORMS["pairwise"](workers, 4 * elements * workers + 4, link), rel=0.01
    )


@given(st.integers(1, 6), st.integers(1, 2), st.integers(1, 500), rates, rates)
@settings(max_examples=40, deadline=None)
def test_a_hierarchy_is_trees_inside_and_a_ring_between(hosts, per_host, parts, link, inside) -> None:
    inside = Uniform(
        latency=inside.latency, byte_seconds=inside.byte_seconds, reduce_seconds=link.reduce_seconds
    )
    found = price("hierarchical", topology(hosts, link, per_host, inside), hosts * parts)
    assert found == pytest.approx(hierarchical(hosts, per_host, hosts * parts, link, inside))


@given(names, st.integers(1, 40), st.integers(1, 5000), st.sampled_from([2, 4, 8]), rates)
@settings(max_examples=60, deadline=None)
def test_no_schedule_beats_the_lower_bound(name, workers, items, element, link) -> None:
    least = lower_bound_bytes(items, element, workers) * link.byte_seconds
    assert price(name, topology(workers, link), items * element, element) >= least * (1 - 1e-9)


def test_the_published_communication_times_of_inception_v3() -> None:
    # 23,734,312 parameters of 4 bytes, 10 Gbit/s of which 0.72 is used; no latency, reducing is free.
    size, link = 4 * 23_734_312, Uniform(latency=0.0, byte_seconds=8 / 10e9 / 0.72)
    published = {1: (0.0, 0.0), 2: (210.972, 105.486), 4: (632.915, 210.972), 8: (1476.802, 316.457)}
    for workers, row in published.items():
        for name, milliseconds in zip(("one-to-all", "butterfly"), row, strict=True):
            whole = ScheduleTimer(find_schedule(name), topology(workers, link).rows).seconds(size)
            for seconds in (CLOSED_FORMS[name](workers, size, link), whole):
                assert 1e3 * seconds == pytest.approx(milliseconds, abs=0.0006)


def test_lower_bound_and_bandwidth_by_hand() -> None:
    # 10 items of 4 bytes, 3 workers: 13.33 items, so 14 of them.
    assert lower_bound_bytes(10, 4, 3) == 56
    assert lower_bound_bytes(10, 4, 1) == lower_bound_bytes(0, 4, 3) == 0
    assert bandwidth_use(10, 4, 3, seconds=2.0) == 28.0


def test_rates_are_those_of_nccl_tests() -> None:
    assert busbw(8e9, 2.0, workers=4) == 6e9


def test_a_ring_meets_the_lower_bound_and_its_bus_bandwidth_is_the_links() -> None:
    link = Uniform(latency=0.0, byte_seconds=1e-9)
    seconds = price("ring", topology(8, link), 8 * 10**6)
    assert busbw(8 * 10**6, seconds, 8) == pytest.approx(1e9)
    assert bandwidth_use(2 * 10**6, 4, 8, seconds) == pytest.approx(1e9)
    assert bandwidth_use(2 * 10**6, 4, 8, seconds) < inf

"""Prices on uneven clusters against the execution of every message, and large clusters against smaller ones.

If one of these fails, what a collective costs is not what carrying it out takes: there is no barrier between rounds.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from paceline.clusters.cluster import Cluster, Device, Host, Link
from paceline.collectives import SCHEDULES, build_schedule, find_schedule
from paceline.costs import schedules
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.message_simulation import simulate_messages
from paceline.costs.schedules import ScheduleTimer, priced_as
from paceline.costs.topology import Topology

SIZES = (4_000, 800_000, 8_000_000)
"""Bound by latency; by bandwidth, in one piece; by bandwidth, in segments where a schedule has them."""


def host(place: int, mbs: float = 1250, latency: float = 5e-5, workers: int = 1, reduce: float = 0.0) -> Host:
    return Host(
        name=f"h{place}",
        link=Link(bandwidth=mbs * 1e6, latency=latency),
        workers=workers,
        inside=Link(bandwidth=5e9, latency=2e-6),
        device=Device(reduce_seconds=reduce),
    )


def uneven(kind: str, hosts: int) -> Topology:
    drawn = random.Random(hosts)
    odd = hosts // 2
    made = {
        "alike": lambda place: host(place, reduce=3e-10),
        "several a host": lambda place: host(place, workers=3),
        "a slow link": lambda place: host(place, mbs=125 if place == odd else 1250),
        "one far away": lambda place: host(place, latency=5e-4 if place == odd else 5e-5),
        "all different": lambda place: host(
            place,
            drawn.choice([125, 1250]),
            drawn.choice([5e-5, 2e-4]),
            drawn.choice([1, 1, 2, 3]),
            drawn.choice([0, 3e-10]),
        ),
    }[kind]
    return Topology(Cluster.of(tuple(made(place) for place in range(hosts))))


KINDS = ("alike", "several a host", "a slow link", "one far away", "all different")


def executed(name: str, topology: Topology, size: int) -> float:
    schedule = build_schedule(name, topology.workers)
    return simulate_messages(schedule, topology, size, 4, schedule.segments(size))


@pytest.mark.parametrize("kind", KINDS)
def test_rings_cost_what_their_execution_takes(kind: str) -> None:
    # To an element a chunk, whatever the links; 1.5 % where messages that do not begin together share a host's memory.
    for hosts in (2, 3, 5, 9):
        topology = uneven(kind, hosts)
        within = 0.015 if len(topology.workers) > hosts else 1e-3
        for size in SIZES:
            found = AllReduceCosts("ring", topology).price(size, 4).seconds
            assert found == pytest.approx(executed("ring", topology, size), rel=within)


@pytest.mark.parametrize("name", sorted({*SCHEDULES} - {"ring"}))
@pytest.mark.parametrize("kind", KINDS)
def test_schedules_of_few_messages_cost_what_their_execution_takes(name: str, kind: str) -> None:
    for hosts in (2, 3, 5):
        topology = uneven(kind, hosts)
        for costs in (AllReduceCosts(name, topology), AllReduceCosts(name, grouped(topology.hosts))):
            for size in SIZES[:2]:
                found = costs.price(size, 4).seconds
                # Among 15 ranks every pair is too many messages to simulate, and most rounds are timed as one.
                within = 0.05 if name == "pairwise" and len(topology.workers) > 11 else 1e-9
                assert found == pytest.approx(executed(name, topology, size), rel=within)


def grouped(hosts: Sequence[Host]) -> Topology:
    named = (replace(one, name=f"h{place}") for place, one in enumerate(hosts))
    return Topology(Cluster.of(named), by_group=True)


def test_schedules_of_many_messages_cost_what_their_execution_takes_in_nearly_all_cases() -> None:
    # The errors that the documentation states: median 1 %, 90th percentile 20 %, at most 35 % where a butterfly of
    # long messages has one odd host. With a barrier after every round they were up to 100 %.
    errors = []
    for kind, hosts in zip(KINDS, (19, 6, 19, 16, 10), strict=True):
        topology = uneven(kind, hosts)
        for name in sorted({*SCHEDULES} - {"ring"}):
            timer = ScheduleTimer(priced_as(name), topology.rows)
            for size in SIZES[:2]:
                found = timer.seconds(size, 4, timer.schedule.segments(size))
                errors.append(abs(found / executed(name, topology, size) - 1))
    errors.sort()
    assert errors[len(errors) // 2] < 0.01
    assert errors[len(errors) * 9 // 10] < 0.2
    assert errors[-1] < 0.35


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_a_large_ring_is_timed_on_fewer_hosts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 %: rows of hosts are made shorter in whole hosts.
    odd = host(0, mbs=200, latency=2e-3)
    near, far = host(0), host(0, latency=4e-4)
    clusters = {
        "alike": [near] * 900,
        "two kinds": [near] * 600 + [far] * 300,
        "one odd": [near] * 500 + [odd] + [near] * 399,
        "the last is half full": [host(0, workers=4)] * 200 + [host(0, workers=2)],
    }
    for hosts in clusters.values():
        rows = grouped(hosts).rows
        for size in SIZES:
            monkeypatch.setattr(schedules, "MOST_HOSTS", 10**6)
            one_by_one = ScheduleTimer(find_schedule(name), rows).seconds(size, 4)
            monkeypatch.setattr(schedules, "MOST_HOSTS", 150)
            assert ScheduleTimer(find_schedule(name), rows).seconds(size, 4) == pytest.approx(
                one_by_one, rel=0.01
            )


@pytest.mark.parametrize("name", ["butterfly", "halving-doubling", "one-to-all", "tree"])
def test_the_price_of_very_many_ranks_follows_from_that_of_fewer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks in (1024, 1500):
        topology = grouped([host(0)] * ranks)
        for size in SIZES:
            monkeypatch.setattr(schedules, "MOST_RANKS", 10**6)
            direct = AllReduceCosts(name, topology).price(size, 4).seconds
            monkeypatch.setattr(schedules, "MOST_RANKS", 512)
            assert AllReduceCosts(name, topology).price(size, 4).seconds == pytest.approx(direct, rel=0.1)

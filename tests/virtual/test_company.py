"""Workers that come late, leave and die: the run goes on, and its log keeps the rules."""

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from virtual_helpers import StepTimes, make_cluster, make_job, time_only, with_gradients

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.costs.topology import Topology
from paceline.errors import RunFailed, UsageError
from paceline.records.servers import Entry, Received, Updated
from paceline.records.spans import StepBreakdown
from paceline.runtimes.settings import Cadence

SPECS = ("ps", "ps:backup=1", "ssp:staleness=2", "async", "async:every=3")
INSTANT = Link(bandwidth=1e24, latency=0.0)


def cores(*starts: float, steps: int | None = None) -> Cluster:
    """The textbook's: a gradient takes 0.2 s, and messages take no time."""
    hosts = [
        Host(name=f"core-{rank}", link=INSTANT, inside=INSTANT, start=start, steps=steps)
        for rank, start in enumerate(starts)
    ]
    return Cluster.of(hosts, times=StepTimes(step=StepBreakdown(forward=0.05, backward=0.15)))


def updates(log: list[Entry]) -> list[Updated]:
    return [entry for entry in log if isinstance(entry, Updated)]


def test_asynchronous_cores_that_compute_once() -> None:
    """Core 4 does not finish; the other three compute on the first parameters."""
    cluster = cores(0.15, 0.20, 0.25, 0.50, steps=1)
    summary, kept = time_only(cluster, strategy_name="async", horizon=0.6, iterations=100)
    found = updates(kept.logs[0])
    assert [update.at for update in found] == pytest.approx([0.35, 0.40, 0.45])
    assert [update.used[0].version for update in found] == [0, 0, 0]
    assert [update.used[0].staleness for update in found] == [0, 1, 2]
    assert [total.steps for total in summary.totals] == [1, 1, 1, 0]
    assert summary.seconds == 0.6
    assert summary.ending == "budget"


def test_asynchronous_cores_for_the_whole_horizon() -> None:
    _, kept = time_only(cores(0.15, 0.20, 0.25, 0.50), strategy_name="async", horizon=0.6, iterations=100)
    assert [update.used[0].staleness for update in updates(kept.logs[0])] == [0, 1, 2, 2, 2]


def test_whoever_has_taken_its_steps_leaves_and_holds_nobody_back() -> None:
    cluster = make_cluster(3)
    hosts = (replace(cluster.hosts[0], steps=2), *cluster.hosts[1:])
    summary, kept = time_only(cluster.with_hosts(hosts), strategy_name="ps", iterations=6)
    assert [total.steps for total in summary.totals] == [2, 8, 8]  # together they do what all were to do
    assert [(one.worker, one.how) for one in summary.servers[0].changes] == [
        (0, "left"),
        (1, "finished"),
        (2, "finished"),
    ]
    assert {len(update.used) for update in updates(kept.logs[0])} == {2, 3}


def test_the_run_is_over_when_everybody_has_left_and_failed_when_everybody_has_died() -> None:
    cluster = make_cluster(2)
    gone = [cluster.map_hosts(partial(replace, **how)) for how in (
        {"steps": 3},
        {"dies": 5.0},
    )]  # fmt: skip
    summary, _ = time_only(gone[0], strategy_name="async", iterations=50)
    assert (summary.ending, [total.steps for total in summary.totals]) == ("budget", [3, 3])
    with pytest.raises(RunFailed, match="no worker is left: all 2 died"):
        time_only(gone[1], strategy_name="async", iterations=50)


@pytest.mark.parametrize("how", [{"start": 1.0}, {"steps": 2}, {"dies": 3.0}])
def test_a_strategy_that_needs_everybody_refuses_to_lose_anybody(how: dict) -> None:
    cluster = make_cluster(2)
    cluster = cluster.with_hosts((cluster.hosts[0], replace(cluster.hosts[1], **how)))
    (setting,) = how
    with pytest.raises(
        UsageError,
        match=rf"{setting} of host 'h1' cannot be used with .*needs every worker.*ssp",
    ):
        time_only(cluster)


def test_a_horizon_needs_servers() -> None:
    with pytest.raises(UsageError, match=r"a horizon of 0\.6 s cannot be used with strategy 'all-reduce'"):
        time_only(make_cluster(2), horizon=0.6)


def test_waiting_for_others_is_waiting_and_the_way_to_the_server_is_not() -> None:
    """The slow worker never waits for another; the fast one waits as long as the slow one computes longer."""
    cluster = make_cluster(2, bandwidth=10e3, latency=0.1)
    keeper = replace(cluster.hosts[0], name="keeper", workers=0, servers=1)
    cluster = cluster.with_hosts((*cluster.hosts, keeper))
    summary, _ = time_only(cluster, strategy_name="ps", iterations=10, slow={1: 3.0})
    fast, slow = (total.seconds for total in summary.totals)
    assert fast["wait"] - slow["wait"] == pytest.approx(10 * 2 * 3.0, rel=0.02)
    assert fast["communicate"] == pytest.approx(slow["communicate"], rel=0.05)
    assert slow["communicate"] > 10 * (2 * 0.1 + 2 * 0.4)


def company(draw: random.Random) -> Cluster:
    """Workers of any speed on any links, of whom some come late, leave or die; the first one stays."""
    hosts = []
    for rank in range(draw.randint(2, 6)):
        link = Link(bandwidth=draw.choice([2e3, 20e3, 1e6]), latency=draw.choice([0, 0.01, 0.5]))
        host = Host(name=f"h{rank}", link=link, workers=draw.choice([1, 1, 2]))
        if rank:
            start = draw.choice([0.0, 0.0, draw.uniform(0, 40)])
            dies = draw.choice([None, None, start + draw.uniform(0.1, 60)])
            host = replace(host, start=start, dies=dies, steps=draw.choice([None, None, draw.randint(1, 8)]))
        hosts.append(host)
    return Cluster.of(
        tuple(hosts),
        times=StepTimes(step=StepBreakdown(forward=1.0, backward=2.0, apply=0.1), serve=0.01, jitter=0.7),
    )


@pytest.mark.parametrize("seed", range(100))
def test_any_company_comes_to_its_end_and_keeps_the_rules(seed: int) -> None:
    draw = random.Random(seed)
    spec, cluster, servers = SPECS[seed % len(SPECS)], company(draw), draw.choice([1, 1, 2])
    summary, kept = time_only(
        cluster, strategy_name=spec, servers=servers, iterations=12, seed=seed, checkpoint=Cadence(5, "steps")
    )
    assert summary.ending == "budget"
    assert summary.steps >= 12
    for log in kept.logs.values():
        check_updates(log)
    if spec.startswith("ssp"):
        founders = {
            rank for rank, host in enumerate(Topology(cluster).workers) if not cluster.hosts[host].start
        }
        check_bound(kept.logs[0], 2, founders)


def check_updates(log: list[Entry]) -> None:
    """Versions count up without a gap, and what is credited was pushed before, once."""
    pushed: Counter[tuple[int, int, int]] = Counter()
    version = 0
    for entry in log:
        if isinstance(entry, Received) and entry.kind == "Push":
            pushed[entry.worker, entry.clock, entry.version] += 1
        if isinstance(entry, Updated):
            assert entry.version == version + 1
            for one in entry.used:
                assert one.staleness == version - one.version >= 0
                pushed[one.worker, one.clock, one.version] -= 1
            version = entry.version
    assert min(pushed.values()) == 0


def check_bound(log: list[Entry], staleness: int, founders: set[int]) -> None:
    """Whoever hands in again was let go on in between, at a time when nobody who counted was too far behind."""
    clocks: dict[int, int] = {}
    coming, resting, meeting, may_go = set[int](), set[int](), set[int](), set[int]()
    for entry in log:
        if not isinstance(entry, Received):
            continue
        worker = entry.worker
        if entry.kind in ("Join", "Leave"):
            founders.discard(worker)
            clocks.pop(worker, None)
            for group in (coming, resting, meeting, may_go):
                group.discard(worker)
            if entry.kind == "Join":
                coming.add(worker)
        elif entry.kind == "Push":
            assert worker in may_go
            may_go.discard(worker)
            meeting.discard(worker)
            clocks[worker] += 1
        elif entry.kind == "Pause":
            resting.add(worker)
            meeting.add(worker)
        elif entry.kind == "Pull":
            resting.discard(worker)
        counted = {one: clock for one, clock in clocks.items() if one not in resting}
        may_go |= {one for one, clock in counted.items() if clock - min(counted.values()) <= staleness}
        if not founders and not meeting:
            slowest = min(counted.values() or clocks.values(), default=0)
            clocks |= dict.fromkeys(coming, slowest)
            may_go |= coming
            coming.clear()


def test_true_gradients_survive_company() -> None:
    """A death in a meeting, a late joiner and a leaver; everybody who is left holds the same model at the end."""
    for seed in range(6):
        draw = random.Random(1000 + seed)
        summary, kept = with_gradients(
            make_job(),
            company(draw),
            strategy_name=SPECS[seed % len(SPECS)],
            iterations=10,
            evaluate=Cadence(2, "steps"),
        )
        assert summary.ending == "budget"
        assert kept.model is not None
        assert [row.step for row in kept.rows] == sorted({row.step for row in kept.rows})
        assert kept.rows[-1].step == summary.steps

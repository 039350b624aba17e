"""What a simulated run says of a step is what a step takes, without the join, the last pull or the horizon."""

import pytest
from virtual_helpers import make_cluster, time_only

from paceline.clusters.cluster import StepTimes
from paceline.records.spans import StepBreakdown
from paceline.reports.summary import summary_text

TIMES = StepTimes(step=StepBreakdown(forward=0.1, backward=0.1))


def test_a_step_of_ps_has_neither_the_join_nor_the_last_pull() -> None:
    """4,000 bytes at 100 kB/s: 40 ms a transfer, and 4 workers share the server's link both ways."""
    cluster = make_cluster(4, bandwidth=1e5, times=TIMES)
    short, long = (time_only(cluster, strategy_name="ps", iterations=steps)[0] for steps in (4, 40))
    every = (long.seconds - short.seconds) / 36
    for one in short.totals[1:]:  # worker 0 shares its host with the server
        assert one.typical.total == pytest.approx(every, rel=0.01)
        assert one.outside["start"] > 0.04
        assert one.outside["communicate"] > 0.04
        assert sum(one.seconds.values()) == pytest.approx(one.in_steps.total + sum(one.outside.values()))
    assert f", {1e3 * every:.0f} ms a step" in summary_text(short)


@pytest.mark.parametrize("detailed", [False, True])
def test_what_a_horizon_cuts_off_is_no_step(detailed: bool) -> None:
    """Worker 0 finishes two steps of 200 ms, worker 1, three times as slow, none; the rest is unfinished."""
    summary, kept = time_only(
        make_cluster(2, bandwidth=1e12, times=TIMES),
        strategy_name="async",
        horizon=0.5,
        slow={1: 3.0},
        detailed=detailed,
        iterations=1000,
    )
    assert [one.steps for one in summary.totals] == [2, 0]
    assert [one.samples for one in summary.totals] == [16, 0]
    assert summary.totals[0].typical.total == pytest.approx(0.2, rel=1e-3)
    assert [one.outside["unfinished"] for one in summary.totals] == pytest.approx([0.1, 0.5], rel=0.01)
    assert [sum(one.seconds.values()) for one in summary.totals] == pytest.approx([0.5, 0.5], rel=1e-3)
    text = summary_text(summary)
    assert "200 ms a step" in text
    assert "\n0 to 2 steps per worker" in text
    assert sum(record.is_step for record in kept.records.get(0, [])) == (2 if detailed else 0)


def test_a_step_that_is_cut_off_while_it_waits_for_its_answer_is_none() -> None:
    """Worker 1 hands its gradient in from 0.24 to 0.28 s, and the answer is still under way at 0.3 s."""
    cluster = make_cluster(2, bandwidth=1e5, times=TIMES)
    summary, kept = time_only(cluster, strategy_name="async", horizon=0.3, iterations=1000)
    assert [one.steps for one in summary.totals] == [1, 0]
    assert summary.servers[0].used == 2, "the server has its gradient"
    assert summary.totals[1].outside["unfinished"] == pytest.approx(0.26, rel=0.01)
    assert [record.is_step for record in kept.records[1]] == [False, False]

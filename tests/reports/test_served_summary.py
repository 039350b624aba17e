"""What the end of a run with servers says, and what it leaves unsaid."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline.records.servers import MembershipChange, ServerTotals
from paceline.records.spans import KINDS, StepRecord, TimeLedger, Totals
from paceline.records.summary import Summary
from paceline.reports.summary import MOST_ROWS, histogram, summary_text

SUMMARY = Summary(
    name="digits",
    runtime="live",
    ending="budget",
    workers=2,
    steps=1000,
    epochs=20.0,
    seconds=10.0,
    samples=64000,
    parameters=20522,
)


def worker(steps: int, compute: float, wait: float = 0.0) -> Totals:
    """A worker's seconds in all."""
    ledger, spent = TimeLedger(), {"backward": compute / steps, "wait": wait / steps}
    for _ in range(steps):
        ledger.count(StepRecord(1, samples=32), [spent.get(kind, 0.0) for kind in KINDS])
    return ledger.totals()


def server(staleness: dict[int, int], dropped: int = 0, **changes: object) -> ServerTotals:
    used = sum(staleness.values())
    found = ServerTotals(updates=used, pushes=used + dropped, used=used, staleness=staleness)
    found.messages, found.depth_sum, found.depth_max = used + dropped, used + dropped, 1
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def served(workers: list[Totals], *servers: ServerTotals) -> list[str]:
    """The lines that servers add."""
    with_them = replace(SUMMARY, workers=len(workers), totals=workers, servers=list(servers))
    without = summary_text(replace(with_them, servers=[]), blocks=False)
    text = summary_text(with_them, blocks=False)
    assert text.startswith(without), "a run with servers says what every run says first"
    return text.removeprefix(f"{without}\n").splitlines()


def test_an_asynchronous_run_tells_staleness_who_waited_and_who_died():
    keeper = server(
        {0: 500, 1: 400, 2: 95, 4: 5},
        dropped=12,
        depth_sum=1518,
        depth_max=4,
        refused={"wrong key": 3, "frame too large": 1},
        changes=[
            MembershipChange(2, 3.1, "joined", 0, 3),
            MembershipChange(1, 8.25, "died", 812, 2),
            MembershipChange(2, 9.0, "left", 20, 1),
            MembershipChange(0, 10.0, "finished", 900, 0),
        ],
    )
    assert served([worker(800, 5.6, wait=4.4), worker(200, 10.0)], keeper) == [
        "",
        "a gradient missed 0.61 updates on average, 4 at most",
        "updates missed      gradients        %",
        "  0                       500     50 %  ########################",
        "  1                       400     40 %  ###################",
        "  2                        95     10 %  #####",
        "  3                         0      0 %",
        "  4                         5     <1 %",
        "",
        "rank 0 waited longest for others, 44 % of its time",
        "worker                  steps   waited      %",
        "  rank 0                  800    4.4 s   44 %",
        "  rank 1                  200        -    0 %",
        "",
        "1,000 updates from 1,000 gradients; 12 more dropped",
        "the server's queue: 1.5 messages on average, 4 at most",
        "refused at the socket: frame too large 1, wrong key 3",
        "rank 2 joined after 3.1 s; the run went on with 3 workers",
        "rank 1 died after 8.25 s, at step 812; the run went on with 2 workers",
        "rank 2 left after 9 s, at step 20; the run went on with 1 worker",
    ]


def test_a_synchronous_run_of_like_workers_has_little_to_say():
    alike = [worker(500, 9.0, wait=1.0), worker(500, 9.2, wait=0.8)]
    assert served(alike, server({0: 1000}, updates=500)) == [
        "",
        "a gradient missed 0 updates on average, 0 at most",
        "",
        "each worker waited about 10 % of its time for others",
        "",
        "500 updates from 1,000 gradients",
    ]
    assert not any("waited" in line for line in served([worker(500, 10.0)] * 2, server({0: 1000})))


def test_several_servers_add_up_what_adds_up_and_staleness_is_that_of_the_first():
    first, second = server({1: 100}, depth_sum=300, depth_max=3), server({0: 50, 5: 52}, depth_max=9)
    first.refused, second.refused = {"wrong key": 1}, {"wrong key": 2}
    lines = served([worker(50, 1.0)] * 2, first, second)
    assert lines == [
        "",
        "a gradient missed 1 update on average, 1 at most (server 0 of 2)",
        "",
        "100 to 102 updates a server from 100 gradients",
        "a server's queue: 1.99 messages on average, 9 at most",
        "refused at the socket: wrong key 3",
    ]


def test_of_many_workers_the_fastest_the_slowest_and_those_that_waited_longest_are_shown():
    crew = [worker(500, 5.0 + rank, wait=15.0 - rank) for rank in range(16)]
    crew[12] = worker(500, 7.0, wait=63.0)
    lines = served(crew, server({0: 8000}))
    assert lines[3:7] == [
        "rank 12 waited longest for others, 90 % of its time",
        "worker                  steps   waited      %",
        "  rank 0, fastest         500     15 s   75 %",
        "  rank 1                  500     14 s   70 %",
    ]
    assert [line.split()[1].strip(",") for line in lines[5:13]] == ["0", "1", "2", "3", "4", "5", "12", "15"]
    assert lines[12:14] == [
        "  rank 15, slowest        500        -    0 %",
        "  8 more that waited less are left out",
    ]


def test_a_crowd_that_comes_and_goes_is_counted_and_not_listed():
    many = [MembershipChange(rank, 1.0 + rank, "joined", 0, 2 + rank) for rank in range(20)]
    lines = served([worker(50, 1.0)] * 2, server({0: 100}, changes=many))
    assert lines[-1] == "and 12 more that joined, left or died"
    assert sum("joined after" in line for line in lines) == 8


def test_a_run_that_never_updated_claims_no_staleness():
    assert served([], server({})) == ["", "0 updates from 0 gradients"]


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 1000), min_size=1, max_size=60))
def test_a_histogram_has_few_rows_and_loses_nothing(counts):
    rows = histogram(counts)
    assert len(rows) <= MOST_ROWS
    assert sum(rows.values()) == sum(counts.values())


@given(st.lists(st.integers(0, 11), min_size=1))
def test_few_values_have_a_row_each(values):
    counts = Counter(values)
    rows = histogram(counts)
    assert {int(title): number for title, number in rows.items() if number} == dict(counts)


def test_far_tails_are_one_row_each_and_the_bulk_is_told_apart():
    counts = {0: 1, 40: 300, 41: 500, 42: 400, 44: 300, 900: 1}
    assert histogram(counts) == {
        "0 to 39": 1, "40": 300, "41": 500, "42": 400, "43": 0, "44": 300, "45 to 900": 1
    }  # fmt: skip

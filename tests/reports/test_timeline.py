"""Short served runs told update by update, and the bound on their distance to sequential SGD."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.records.servers import AppliedGradient, Entry, Received, Ticked, Updated
from paceline.reports.timeline import (
    distance_text,
    distance_to_sequential,
    sequential_updates,
    timeline_text,
)

STALENESS = st.lists(st.integers(0, 5), max_size=20)


def push(at: float, worker: int, clock: int, version: int) -> Received:
    return Received(at, worker, "Push", clock=clock, version=version, depth=1)


def arrival(at: float, worker: int, clock: int, version: int, update: int) -> list[Entry]:
    """A gradient that is applied when it comes."""
    used = AppliedGradient(worker, clock, version, update - 1 - version, 32)
    return [push(at, worker, clock, version), Updated(at + 1e-6, update, (used,))]


FOUR_CORES = [
    Received(0.15, 0, "Join", depth=1),
    Received(0.20, 1, "Join", depth=1),
    Received(0.25, 2, "Join", depth=1),
    *arrival(0.35, 0, 0, 0, update=1),
    *arrival(0.40, 1, 0, 0, update=2),
    *arrival(0.45, 2, 0, 0, update=3),
    Received(0.50, 3, "Join", depth=1),
    *arrival(0.55, 0, 1, 1, update=4),
    *arrival(0.60, 1, 1, 2, update=5),
]


def test_four_cores_for_the_whole_horizon():
    assert timeline_text(FOUR_CORES, sequential_updates(0.2, 0.6)) == (
        "     at s   worker   what it did\n"
        "    0.150        0   reads version 0\n"
        "    0.200        1   reads version 0\n"
        "    0.250        2   reads version 0\n"
        "    0.350        0   update 1, computed on version 0, staleness 0; reads version 1\n"
        "    0.400        1   update 2, computed on version 0, staleness 1; reads version 2\n"
        "    0.450        2   update 3, computed on version 0, staleness 2\n"
        "    0.500        3   reads version 3, and hands nothing in before the end\n"
        "    0.550        0   update 4, computed on version 1, staleness 2\n"
        "    0.600        1   update 5, computed on version 2, staleness 2\n"
        "\n"
        "at most 6 eta Delta from sequential SGD, which makes 3 updates in the same time: 2 updates that may differ "
        "from its own count 2 each, 2 updates that it does not make count 1 each (for plain SGD; eta is the learning "
        "rate, Delta the largest gradient norm)"
    )


@pytest.mark.parametrize(
    ("staleness", "sequential", "bound"),
    [
        ([0, 1, 2], 3, 4),
        ([0, 1, 2, 2, 2], 3, 6),
        ([0, 1, 2, 2, 2], None, 8),
        ([0, 0, 0], 3, 0),
        ([0, 0], 5, 3),
        ([0, 2, 0, 0], 4, 6),  # what is computed on parameters gone astray is astray as well
        ([], 3, 3),
    ],
)
def test_the_distance_to_sequential_sgd(staleness, sequential, bound):
    assert distance_to_sequential(staleness, sequential).bound == bound


@given(staleness=STALENESS, sequential=st.integers(0, 20))
def test_the_bound_holds_where_every_gradient_is_as_far_off_as_it_can_be(staleness, sequential):
    """On a line with eta and Delta 1: sequential goes up, and what may differ goes down."""
    here, astray = 0, False
    for missed in staleness:
        astray = astray or missed > 0
        here += -1 if astray else 1
    apart = abs(here - sequential)
    bound = distance_to_sequential(staleness, sequential).bound
    assert apart <= bound
    if len(staleness) == sequential:
        assert apart == bound, "no smaller bound would hold"


@pytest.mark.parametrize(
    ("staleness", "sequential", "words"),
    [
        ([0, 0], None, "as many updates of sequential SGD lead to the same place: none of these is stale"),
        ([0, 0], 3, "which makes 3 updates in the same time: 1 update that only it makes counts 1 (for"),
        (
            [0, 1],
            None,
            "at most 2 eta Delta from as many updates of sequential SGD: 1 update that may differ",
        ),
    ],
)
def test_the_sentence_names_only_what_there_is(staleness, sequential, words):
    assert words in distance_text(distance_to_sequential(staleness, sequential))


def test_a_round_of_several_gradients_and_those_who_were_held():
    both = (AppliedGradient(0, 0, 0, 0, 32), AppliedGradient(1, 0, 0, 0, 32))
    entries: list[Entry] = [
        Received(0.0, 0, "Join"),
        Received(0.0, 1, "Join"),
        push(0.001, 0, 0, 0),
        push(0.003, 1, 0, 0),
        Updated(0.003, 1, both),
        push(0.004, 0, 1, 1),
    ]
    assert [line.split(maxsplit=2) for line in timeline_text(entries).splitlines()[1:-2]] == [
        ["0.000", "0", "reads version 0"],
        ["0.000", "1", "reads version 0"],
        ["1.000", "0", "hands in a gradient computed on version 0"],
        ["3.000", "0", "update 1, computed on version 0, staleness 0; reads version 1"],
        ["3.000", "1", "update 1, computed on version 0, staleness 0"],
        ["4.000", "0", "a gradient computed on version 1, not used"],
    ]


def test_one_who_reads_what_another_wrote_and_one_who_dies():
    entries: list[Entry] = [
        Received(0.0, 0, "Join"),
        Received(0.0, 1, "Join"),
        *arrival(1.0, 0, 0, 0, update=1),
        *arrival(2.0, 1, 0, 0, update=2),
        push(3.0, 0, 1, 2),  # it was held at the bound until the other had come
        Ticked(3.5),
        Received(4.0, 1, "Leave", clock=1, how="died"),
        Received(5.0, 0, "Leave", clock=1, how="finished"),
    ]
    assert [line.split(maxsplit=2)[1:] for line in timeline_text(entries).splitlines()[3:-2]] == [
        ["0", "update 1, computed on version 0, staleness 0"],
        ["1", "update 2, computed on version 0, staleness 1"],
        ["0", "reads version 2"],
        ["0", "a gradient computed on version 2, not used"],
        ["1", "dies"],
    ]


def test_after_a_meeting_a_worker_reads_anew():
    entries: list[Entry] = [
        Received(0.0, 0, "Join"),
        *arrival(1.0, 0, 0, 0, update=1),
        Received(1.0, 0, "Pause"),
        Received(1.0, 1, "Join"),
        *arrival(2.0, 1, 0, 1, update=2),
        Received(3.0, 0, "Pull"),
        *arrival(4.0, 0, 1, 2, update=3),
        Received(4.0, 0, "Pull"),
    ]
    assert [line.split(maxsplit=2) for line in timeline_text(entries).splitlines()[2:-2]] == [
        ["1.000", "0", "update 1, computed on version 0, staleness 0"],
        ["1.000", "1", "reads version 1"],
        ["2.000", "1", "update 2, computed on version 1, staleness 0"],
        ["3.000", "0", "reads version 2"],
        ["4.000", "0", "update 3, computed on version 2, staleness 0"],
    ]

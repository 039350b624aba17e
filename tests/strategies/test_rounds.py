"""When which fragment is averaged: arithmetic on the clock alone."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.rounds import RoundSchedule


@st.composite
def rounds(draw) -> RoundSchedule:
    first = draw(st.integers(1, 40))
    growth = draw(st.sampled_from([1.0, 1.01, 1.3, 2.0, 7.5]))
    return RoundSchedule(
        first=first,
        growth=growth,
        longest=first + draw(st.integers(0, 60)) * (growth > 1),
        fragments=draw(st.integers(1, first)),
        since=draw(st.integers(0, 30)),
    )


@given(rounds())
def test_every_round_averages_each_fragment_once_in_order_and_is_the_longest_in_the_end(
    one: RoundSchedule,
) -> None:
    last = one.settled + 3 * one.longest
    due = [(clock, one.due(clock)) for clock in range(last + 1)]
    found = [(clock, fragment) for clock, fragment in due if fragment is not None]
    assert [fragment for _, fragment in found] == [place % one.fragments for place in range(len(found))], (
        "if a round left a fragment out, it would never be averaged"
    )
    ends = [one.since, *(clock for clock, fragment in found if fragment == one.fragments - 1)]
    lengths = [later - earlier for earlier, later in pairwise(ends)]
    assert lengths[0] == one.first
    assert lengths == sorted(lengths)
    assert all(later <= earlier * one.growth + one.growth for earlier, later in pairwise(lengths))
    assert lengths[-3:] == [one.longest] * 3, "from where it has settled"
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(found)]
    assert min(gaps) >= one.first // one.fragments, "an average that takes this long is over before the next"


def test_rounds_that_double() -> None:
    one = RoundSchedule(first=2, growth=2.0, longest=9)
    assert [clock for clock in range(40) if one.due(clock) is not None] == [2, 6, 14, 23, 32]
    assert one.settled == 14


def test_fragments_are_even_in_a_round() -> None:
    one = RoundSchedule(first=10, longest=10, fragments=4, since=100)
    assert [(clock, one.due(clock)) for clock in range(100, 121) if one.due(clock) is not None] == [
        (102, 0),
        (105, 1),
        (107, 2),
        (110, 3),
        (112, 0),
        (115, 1),
        (117, 2),
        (120, 3),
    ]

"""Rounds that are written once are the rounds that they stand for."""

import pytest

from paceline.collectives.algorithms.ring import ring
from paceline.collectives.schedule import Round, Then, Transfer
from paceline.collectives.turns import Joined, Turns, alike

FIRST = Round("share", (Transfer(0, 1, 0, 1, Then.REDUCE), Transfer(1, 0, 2, 3, Then.REDUCE)))
LAST = Round("end", ())


def test_each_turn_carries_the_chunk_before() -> None:
    turns = Turns(FIRST, 3, 3)
    assert [[sent.start for sent in turn.transfers] for turn in turns] == [[0, 2], [2, 1], [1, 0]]
    assert all(sent.stop == sent.start + 1 for turn in turns for sent in turn.transfers)
    assert turns[0] == FIRST


def test_parts_are_a_sequence_like_any_other() -> None:
    rounds = Joined((Turns(FIRST, 2, 3), (), (LAST,)))
    listed = list(rounds)
    assert len(rounds) == len(listed) == 3
    assert [rounds[place] for place in range(-3, 3)] == listed * 2
    assert list(rounds[1:]) == listed[1:]
    with pytest.raises(IndexError):
        rounds[3]


def test_like_rounds_are_counted_and_none_is_lost() -> None:
    rounds = Joined((Turns(FIRST, 2, 3), Turns(FIRST, 0, 3), (LAST,)))
    assert list(alike(rounds)) == [(FIRST, 2), (LAST, 1)]


def test_a_long_ring_is_two_rounds_until_somebody_looks() -> None:
    # Two million transfers would take seconds and hundreds of megabytes.
    schedule = ring(range(1000))
    assert len(schedule.rounds) == 1998
    assert [count for _, count in alike(schedule.rounds)] == [999, 999]
    assert schedule.rounds[1500].transfers[7] == Transfer(7, 8, 507, 508, Then.REPLACE)

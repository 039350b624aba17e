"""What workers do together through server 0, whoever comes and goes: if these fail, a meeting hangs or sums wrongly."""

import pytest
import torch

from paceline.runtimes.live.server.collectives import ElasticCollectives, Gift


def gift(value: float, op: str = "sum", root: int = 0) -> Gift:
    return Gift(op, torch.tensor([value]), root)


def test_a_collective_ends_when_every_member_has_given() -> None:
    circle = ElasticCollectives([0, 1])
    circle.give(0, gift(1.0))
    assert circle.whole() == []
    circle.give(1, gift(2.0))
    (outcome,) = circle.whole()
    assert (outcome.members, outcome.content.tolist()) == ((0, 1), [3.0])


def test_whoever_leaves_is_not_waited_for_and_does_not_count() -> None:
    circle = ElasticCollectives([0, 1, 2])
    circle.give(0, gift(1.0))
    circle.give(2, gift(4.0))
    circle.drop(2)
    assert circle.whole() == []
    circle.drop(1)
    (outcome,) = circle.whole()
    assert (outcome.members, outcome.content.tolist()) == ((0,), [1.0])


def test_nothing_is_left_of_those_who_have_all_gone() -> None:
    """A newcomer's first collective must not be mixed with one that nobody ended."""
    circle = ElasticCollectives([0, 1])
    circle.give(1, gift(8.0))
    circle.drop(1)
    circle.drop(0)
    circle.add(2)
    circle.give(2, gift(1.0))
    (outcome,) = circle.whole()
    assert (outcome.members, outcome.content.tolist()) == ((2,), [1.0])


def test_a_member_that_is_ahead_keeps_its_turn() -> None:
    circle = ElasticCollectives([0, 1])
    circle.give(0, gift(1.0))
    circle.give(0, gift(10.0))
    circle.give(1, gift(2.0))
    assert [outcome.content.tolist() for outcome in circle.whole()] == [[3.0]]
    circle.give(1, gift(20.0))
    assert [outcome.content.tolist() for outcome in circle.whole()] == [[30.0]]


def test_what_a_stranger_gives_is_nothing() -> None:
    circle = ElasticCollectives([0])
    circle.give(5, gift(9.0))
    circle.give(0, gift(1.0))
    (outcome,) = circle.whole()
    assert outcome.content.tolist() == [1.0]


@pytest.mark.parametrize(("op", "expected"), [("sum", 6.0), ("min", 2.0), ("broadcast", 4.0)])
def test_every_way_of_combining(op: str, expected: float) -> None:
    circle = ElasticCollectives([0, 1])
    circle.give(0, gift(2.0, op, root=1))
    circle.give(1, gift(4.0, op, root=1))
    (outcome,) = circle.whole()
    assert outcome.content.item() == expected


def test_a_broadcast_goes_on_without_its_root() -> None:
    circle = ElasticCollectives([1, 2])
    circle.give(1, gift(2.0, "broadcast", root=0))
    circle.give(2, gift(4.0, "broadcast", root=0))
    (outcome,) = circle.whole()
    assert outcome.content.item() == 2.0


def test_documents_are_told_by_rank() -> None:
    circle = ElasticCollectives([0, 3])
    circle.give(3, Gift("words", '"three"'))
    circle.give(0, Gift("words", '"zero"'))
    (outcome,) = circle.whole()
    assert outcome.content == {0: '"zero"', 3: '"three"'}


def test_members_that_do_not_agree_are_named() -> None:
    circle = ElasticCollectives([0, 1])
    circle.give(0, gift(1.0, "sum"))
    circle.give(1, gift(1.0, "min"))
    with pytest.raises(RuntimeError, match="rank 0 sum, rank 1 min"):
        circle.whole()

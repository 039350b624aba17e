"""What workers do together through server 0, whoever comes and goes: if these fail, a meeting hangs or sums wrongly."""

import pytest
import torch

from paceline.runtimes.live.server.run import ElasticCollectives
from paceline.runtimes.live.wire.messages import Contribution


def contribution(value: float, op: str = "sum", root: int = 0) -> Contribution:
    return Contribution(op, root, torch.tensor([value]))


def test_a_collective_ends_when_every_member_has_given() -> None:
    collectives = ElasticCollectives([0, 1])
    collectives.contribute(0, contribution(1.0))
    assert collectives.completed() == []
    collectives.contribute(1, contribution(2.0))
    (result,) = collectives.completed()
    assert (result.members, result.tensor.tolist()) == ((0, 1), [3.0])


def test_whoever_leaves_is_not_waited_for_and_does_not_count() -> None:
    collectives = ElasticCollectives([0, 1, 2])
    collectives.contribute(0, contribution(1.0))
    collectives.contribute(2, contribution(4.0))
    collectives.remove(2)
    assert collectives.completed() == []
    collectives.remove(1)
    (result,) = collectives.completed()
    assert (result.members, result.tensor.tolist()) == ((0,), [1.0])


def test_nothing_is_left_of_those_who_have_all_gone() -> None:
    """A newcomer's first collective must not be mixed with one that nobody ended."""
    collectives = ElasticCollectives([0, 1])
    collectives.contribute(1, contribution(8.0))
    collectives.remove(1)
    collectives.remove(0)
    collectives.add(2)
    collectives.contribute(2, contribution(1.0))
    (result,) = collectives.completed()
    assert (result.members, result.tensor.tolist()) == ((2,), [1.0])


def test_a_member_that_is_ahead_keeps_its_turn() -> None:
    collectives = ElasticCollectives([0, 1])
    collectives.contribute(0, contribution(1.0))
    collectives.contribute(0, contribution(10.0))
    collectives.contribute(1, contribution(2.0))
    assert [result.tensor.tolist() for result in collectives.completed()] == [[3.0]]
    collectives.contribute(1, contribution(20.0))
    assert [result.tensor.tolist() for result in collectives.completed()] == [[30.0]]


def test_what_a_stranger_gives_is_nothing() -> None:
    collectives = ElasticCollectives([0])
    collectives.contribute(5, contribution(9.0))
    collectives.contribute(0, contribution(1.0))
    (result,) = collectives.completed()
    assert result.tensor.tolist() == [1.0]


@pytest.mark.parametrize(("op", "expected"), [("sum", 6.0), ("min", 2.0), ("broadcast", 4.0)])
def test_every_way_of_combining(op: str, expected: float) -> None:
    collectives = ElasticCollectives([0, 1])
    collectives.contribute(0, contribution(2.0, op, root=1))
    collectives.contribute(1, contribution(4.0, op, root=1))
    (result,) = collectives.completed()
    assert result.tensor.item() == expected


def test_a_broadcast_goes_on_without_its_root() -> None:
    collectives = ElasticCollectives([1, 2])
    collectives.contribute(1, contribution(2.0, "broadcast", root=0))
    collectives.contribute(2, contribution(4.0, "broadcast", root=0))
    (result,) = collectives.completed()
    assert result.tensor.item() == 2.0


def test_documents_are_told_by_rank() -> None:
    collectives = ElasticCollectives([0, 3])
    collectives.contribute(3, Contribution("gather", document='"three"'))
    collectives.contribute(0, Contribution("gather", document='"zero"'))
    (result,) = collectives.completed()
    assert (result.members, result.documents) == ((0, 3), ('"zero"', '"three"'))


def test_members_that_do_not_agree_are_named() -> None:
    collectives = ElasticCollectives([0, 1])
    collectives.contribute(0, contribution(1.0, "sum"))
    collectives.contribute(1, contribution(1.0, "min"))
    with pytest.raises(RuntimeError, match="rank 0 sum, rank 1 min"):
        collectives.completed()

"""Replicas are compared by their bits."""

import pytest
import torch

from paceline.errors import RunFailed
from paceline.runtimes.live.worker.drift import (
    DriftCheck,
    describe_drift,
    equal_when_saved,
    exact_hash,
    parameter_hash,
)
from paceline.strategies.base import Worker


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hash_knows_every_bit_but_those_of_what_is_no_number(dtype):
    params = torch.randn(1001, dtype=dtype)
    for place in (0, 17, 1000):
        for changed in (torch.nextafter(params[place], params[place] + 1), -params[place]):
            other = params.clone()
            other[place] = changed
            assert parameter_hash(other) != parameter_hash(params)
            assert exact_hash(other) != exact_hash(params)
    one, other = params.clone(), params.clone()
    one[3], other[3] = float("nan"), -torch.tensor(float("nan"))
    assert parameter_hash(one) == parameter_hash(other), (
        "a sum of several that are none may have the bits of any"
    )
    assert exact_hash(one) == exact_hash(other)
    assert 0 <= parameter_hash(params) < 2**53


def test_those_who_differ_from_most_are_named():
    assert describe_drift(["a", "b", "a"]) == "the parameters of rank 1 are not those of ranks 0 and 2"
    assert describe_drift(["a", "b"]) == "the parameters of ranks 0 and 1 differ"
    assert describe_drift(["a", "b", "b", "a"]) == "the parameters of ranks 0, 1, 2 and 3 differ"


class Pair:
    """One of two workers; the other one's documents are played from a script."""

    def __init__(self, other: str) -> None:
        self.other = other

    def exchange(self, document):
        return [document, self.other]


def test_a_difference_is_told_with_the_last_step_at_which_there_was_none():
    me = Worker(0, 2, torch.ones(4), torch.zeros(4), torch.zeros(0))
    alike = DriftCheck(Pair("other"), me)
    me.clock = 64
    alike.compare(alike.numbers())
    me.clock = 128
    number, negative = alike.numbers()
    with pytest.raises(
        RunFailed, match="at step 128 the parameters of ranks 0 and 1 differ, and at step 64 all"
    ):
        alike.compare([number - 1, negative])


def test_replicas_that_differ_in_a_checkpoint_are_named_and_it_is_not_used():
    notes: list[str] = []
    params = torch.ones(3)
    assert equal_when_saved(Pair(exact_hash(params)), params, 20, notes.append)
    assert not equal_when_saved(Pair("other"), params, 20, notes.append)
    assert notes == [
        "in the checkpoint of step 20 the parameters of ranks 0 and 1 differ; this checkpoint is not used"
    ]

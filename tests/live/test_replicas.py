"""Replicas are compared by their bits."""

from types import SimpleNamespace

import pytest
import torch

from paceline.errors import RunFailed
from paceline.records.spans import TimeLedger
from paceline.runtimes.live.worker.recorder import StepRecorder, exact_hash, find_drift, parameter_hash
from paceline.runtimes.live.worker.records import load_shared
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


class Script:
    """The hashes that all workers have exchanged; the other one's number differs by ``other``."""

    workers, other = 2, 0

    def __init__(self, hashes: str) -> None:
        self.hashes = hashes

    def minimum(self, numbers: torch.Tensor) -> None:
        numbers[-2] += self.other

    def exchange(self, _):
        return list(self.hashes)


def test_those_who_differ_from_most_are_named():
    def told(hashes: str) -> str:
        return find_drift(Script(hashes), torch.ones(3))

    assert told("aba") == "the parameters of rank 1 are not those of ranks 0 and 2"
    assert told("ab") == "the parameters of ranks 0 and 1 differ"
    assert told("abba") == "the parameters of ranks 0, 1, 2 and 3 differ"
    assert told("aaa") == ""


def test_a_difference_is_told_with_the_last_step_at_which_there_was_none():
    me = Worker(0, 2, torch.ones(4), torch.zeros(4), torch.zeros(0))
    group = Script("ab")
    recorder = StepRecorder(group, SimpleNamespace(flush=lambda: None), TimeLedger(), replica=me)
    me.clock = 64
    recorder.settle()
    me.clock, group.other = 128, -1
    with pytest.raises(
        RunFailed, match="at step 128 the parameters of ranks 0 and 1 differ, and at step 64 all"
    ):
        recorder.settle()


def test_replicas_that_differ_in_a_checkpoint_are_named_and_it_is_not_used():
    notes: list[str] = []

    class Pair:
        """One of two workers; the other one has other parameters in the newer checkpoint."""

        rank, workers = 0, 2
        exchanged = 0

        def exchange(self, document):
            self.exchanged += 1
            return [document, "other" if self.exchanged == 2 else document]

    checkpoints = SimpleNamespace(
        valid_steps=lambda _: ([20, 10], []), load=lambda *_: {"replica": {"params": torch.ones(3)}}
    )
    prepared = SimpleNamespace(servers=0, strategy=SimpleNamespace(replicated=True))
    assert load_shared(checkpoints, Pair(), prepared, notes.append)[0] == 10
    assert notes == [
        "in the checkpoint of step 20 the parameters of ranks 0 and 1 differ; this checkpoint is not used"
    ]

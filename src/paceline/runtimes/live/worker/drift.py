"""Workers that hold the same parameters compare them now and then: a replica that has drifted is found and named."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import RunFailed
from paceline.runtimes.live.worker.comm import Group
from paceline.strategies.base import Worker

_PRIME = 2**53 - 111
"""Numbers below it are exact in float64."""


class Replicas(Protocol):
    """Numbers that ride along when all workers find the smallest of theirs."""

    def numbers(self) -> list[float]:
        """This worker's."""

    def compare(self, smallest: Sequence[float]) -> None:
        """The smallest of all workers', in the same order."""


class Unlike:
    """Workers that need not hold the same parameters."""

    def numbers(self) -> list[float]:
        """None."""
        return []

    def compare(self, smallest: Sequence[float]) -> None:
        """Nothing to compare."""


class Alike:
    """Workers whose parameters must be equal to the last bit; batch-norm statistics are each worker's own.

    A number and its negative tell the smallest and the largest of all, so that every worker sees the same.
    """

    def __init__(self, group: Group, me: Worker) -> None:
        self._group, self._me, self._equal_at = group, me, me.clock

    def numbers(self) -> list[float]:
        """A hash of the parameters, and its negative."""
        number = float(parameter_hash(self._me.params))
        return [number, -number]

    def compare(self, smallest: Sequence[float]) -> None:
        """Raise RunFailed on all workers, naming those that differ."""
        if smallest[0] == -smallest[1]:
            self._equal_at = self._me.clock
            return
        hashes = self._group.exchange(exact_hash(self._me.params))
        raise RunFailed(
            f"the workers no longer train the same model: at step {self._me.clock} {who_differs(hashes)}, and at "
            f"step {self._equal_at} all were equal"
        )


@torch.no_grad()
def parameter_hash(params: Tensor) -> int:
    """A number below 2**53 that differs where the bits of the parameters do, but for one case in 2**53.

    Values that have only changed places count alike. One pass over the memory, in any order. A value that is no
    number counts alike whatever its bits, for these depend on the order of a sum.
    """
    plain = params if torch.isfinite(params.sum()) else params.nan_to_num()
    if plain.element_size() == 8:
        return int(plain.view(torch.int64).sum()) % _PRIME
    # Two at a time: torch adds 64-bit words 20 times as fast as it widens 32-bit ones.
    even = plain.numel() // 2 * 2
    words, last = plain[:even].view(torch.int64), plain[even:].view(torch.int32)
    return (int(words.sum()) + int(last.sum())) % _PRIME


def exact_hash(params: Tensor) -> str:
    """SHA-256 of the parameters."""
    return hashlib.sha256(params.detach().nan_to_num().cpu().contiguous().numpy().tobytes()).hexdigest()


def who_differs(hashes: Sequence[str]) -> str:
    """Which ranks have other parameters than most; where there is no most, all are named."""
    counts = Counter(hashes).most_common()
    if len(counts) == len(hashes) or counts[0][1] == counts[1][1]:
        return f"the parameters of {_ranks(range(len(hashes)))} differ"
    usual = counts[0][0]
    odd = [rank for rank, one in enumerate(hashes) if one != usual]
    even = [rank for rank, one in enumerate(hashes) if one == usual]
    return f"the parameters of {_ranks(odd)} are not those of {_ranks(even)}"


def _ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def equal_when_saved(group: Group, params: Tensor, step: int, note: Callable[[str], None]) -> bool:
    """Whether all workers saved the same parameters; else it is said which differ."""
    hashes = group.exchange(exact_hash(params))
    if len(set(hashes)) == 1:
        return True
    note(f"in the checkpoint of step {step} {who_differs(hashes)}; this checkpoint is not used")
    return False

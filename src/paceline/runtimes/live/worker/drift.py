"""Workers that hold the same parameters compare them from time to time: a replica that has drifted is named."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.errors import RunFailed
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.strategies.base import Worker

_PRIME = 2**53 - 111
"""Numbers below it are exact in float64."""


class NoDriftCheck:
    """For workers that need not hold the same parameters."""

    def numbers(self) -> list[float]:
        """This worker's numbers, of which all workers find the element-wise minimum."""
        return []

    def compare(self, smallest: Sequence[float]) -> None:
        """Compare with the minimum over all workers."""


class DriftCheck(NoDriftCheck):
    """For workers whose parameters must be equal to the last bit; batch-norm statistics are each worker's own.

    The minimum of a number and of its negative give the smallest and the largest of all, so that every worker sees
    the same.
    """

    def __init__(self, comm: SoloComm, me: Worker) -> None:
        self._comm, self._me, self._equal_at = comm, me, me.clock

    def numbers(self) -> list[float]:
        number = float(parameter_hash(self._me.params))
        return [number, -number]

    def compare(self, smallest: Sequence[float]) -> None:
        """Raise RunFailed on all workers, naming those that differ."""
        if smallest[0] == -smallest[1]:
            self._equal_at = self._me.clock
            return
        hashes = self._comm.exchange(exact_hash(self._me.params))
        raise RunFailed(
            f"the workers no longer train the same model: at step {self._me.clock} {describe_drift(hashes)}, and at "
            f"step {self._equal_at} all were equal"
        )


@torch.no_grad()
def parameter_hash(params: Tensor) -> int:
    """A number below 2**53 that differs where the bits of the parameters do, except with a chance of 2**-53.

    A permutation of the values has the same hash. One pass over the memory, in any order. A NaN counts the same
    whatever its bits, for these depend on the order of a sum.
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


def describe_drift(hashes: Sequence[str]) -> str:
    """Which ranks have other parameters than the majority; where there is none, all are named."""
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


def equal_when_saved(comm: SoloComm, params: Tensor, step: int, note: Callable[[str], None]) -> bool:
    """Whether all workers saved the same parameters; else ``note`` is called with which differ."""
    hashes = comm.exchange(exact_hash(params))
    if len(set(hashes)) == 1:
        return True
    note(f"in the checkpoint of step {step} {describe_drift(hashes)}; this checkpoint is not used")
    return False

"""Workers that hold the same parameters compare them from time to time: a replica that has drifted is named."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import RunFailed
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.strategies.base import Worker

_PRIME = 2**53 - 111
"""Numbers below it are exact in float64."""


class DriftCheck:
    """For workers whose parameters must be equal to the last bit; batch-norm statistics are each worker's own.

    The minimum of a number and of its negative give the smallest and the largest of all, so that every worker sees
    the same.
    """

    def __init__(self, comm: SoloComm, me: Worker) -> None:
        self._comm, self._me, self._equal_at = comm, me, me.clock

    def numbers(self) -> list[float]:
        """This worker's numbers, of which all workers find the element-wise minimum."""
        number = float(parameter_hash(self._me.params))
        return [number, -number]

    def compare(self, smallest: Sequence[float]) -> None:
        """Compare with the minimum over all workers; raise RunFailed on all workers, naming those that differ."""
        if smallest[0] != -smallest[1]:
            raise RunFailed(
                f"the workers no longer train the same model: at step {self._me.clock} "
                f"{find_drift(self._comm, self._me.params)}, and at step {self._equal_at} all were equal"
            )
        self._equal_at = self._me.clock


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


def find_drift(comm: SoloComm, params: Tensor) -> str:
    """Which ranks have other parameters than the majority; without one, all are named. Empty: all are equal."""
    hashes = comm.exchange(exact_hash(params))
    counts = Counter(hashes).most_common()
    if len(counts) == 1:
        return ""
    if counts[0][1] == counts[1][1]:
        return f"the parameters of {_ranks(range(len(hashes)))} differ"
    odd = [rank for rank, one in enumerate(hashes) if one != counts[0][0]]
    even = [rank for rank, one in enumerate(hashes) if one == counts[0][0]]
    return f"the parameters of {_ranks(odd)} are not those of {_ranks(even)}"


def _ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"

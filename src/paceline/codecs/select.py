"""Which elements are sent: the largest, those that reach a bound, or some at random. Indices ascend and are distinct.

On a CPU numpy finds them, several times as fast as torch's operators do.
"""

from functools import lru_cache
from math import log1p

import numpy as np
import torch
from torch import Tensor

SAMPLE = 2**15


def largest(vector: Tensor, count: int) -> Tensor:
    """The indices of the ``count`` elements of largest magnitude, of each row of a matrix.

    Among equal ones a CPU takes the first.
    """
    if not count:
        return torch.empty((*vector.shape[:-1], 0), dtype=torch.long, device=vector.device)
    if not _in_numpy(vector):
        return vector.abs().topk(count, sorted=False).indices.sort().values
    if vector.dim() > 1:
        return torch.stack([largest(row, count) for row in vector])
    values = vector.numpy()
    found = _reaching(values, _guess(values, count))
    if len(found) < count:
        found = np.arange(len(values))
    if len(found) == count:
        return torch.from_numpy(found)
    sizes = torch.from_numpy(np.abs(values[found]))
    least = sizes.kthvalue(len(found) - count + 1).values.numpy()
    chosen = sizes.numpy() > least
    equal = np.flatnonzero(sizes.numpy() == least)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return torch.from_numpy(found[chosen])


def reaching(vector: Tensor, bound: float) -> Tensor:
    """The indices of the elements whose magnitude is at least ``bound``."""
    if _in_numpy(vector):
        return torch.from_numpy(_reaching(vector.numpy(), bound))
    return (vector.abs() >= bound).nonzero().view(-1)


@lru_cache(maxsize=2)  # what encodes draws the same as what decodes
def drawn(seed: int, length: int, count: int) -> Tensor:
    """``count`` indices below ``length``, every set of them as likely as another."""
    generator = np.random.Generator(np.random.SFC64(seed))
    few = min(count, length - count)  # those that are chosen, or those that are not
    marked = np.zeros(length, dtype=bool)
    many = 0
    while many < few:
        draws = -log1p((many - few) / (length - many)) * length  # that many are new
        marked[generator.integers(length, size=int(1.005 * draws) + 8)] = True
        many = int(np.count_nonzero(marked))
    found = np.flatnonzero(marked)
    found = np.delete(found, generator.choice(many, many - few, replace=False, shuffle=False))
    return torch.from_numpy(found if few == count else np.delete(np.arange(length), found))


def _in_numpy(vector: Tensor) -> bool:
    return vector.device.type == "cpu" and vector.dtype in (torch.float32, torch.float64)


def _reaching(values: np.ndarray, bound: float) -> np.ndarray:
    return np.flatnonzero((values >= bound) | (values <= -bound))


def _guess(values: np.ndarray, count: int) -> float:
    """A bound that, as a sample tells, a few more than ``count`` elements reach."""
    expected = SAMPLE * count / max(1, len(values))
    place = SAMPLE - round(expected + 4 * expected**0.5 + 4)
    if len(values) <= 2 * SAMPLE or place < 0:
        return 0.0
    places = np.random.Generator(np.random.SFC64(0)).integers(len(values), size=SAMPLE)
    return float(np.partition(np.abs(values[places]), place)[place])

"""Two workers need no ring: each sends the other all it has, and adds."""

LARGEST = 2**20
"""Bytes up to which a pair swaps. It sends what a ring would send, in one message instead of two after each other;
beyond, a ring's smaller pieces pay, because they are added while others travel (``benchmarks/pair.py``)."""


def swaps(workers: int, size: int) -> bool:
    """Whether a sum of ``size`` bytes is such a swap."""
    return workers == 2 and size <= LARGEST

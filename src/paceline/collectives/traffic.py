"""How a gradient travels: in which buckets, and how many bytes each worker sends and receives for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.collectives.schedule import Schedule, chunk_bounds

LARGEST_SWAP = 2**20
"""Bytes up to which a pair swaps: beyond, a ring's smaller pieces are added while others travel."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A contiguous part of the flat gradient, in elements, and the parameters that lie in it."""

    start: int
    stop: int
    parameters: range


def plan_buckets(sizes: Sequence[int], element: int, first: int, later: int) -> list[Bucket]:
    """Cut parameters into buckets of at least ``first`` and then ``later`` bytes, last parameter first, none split."""
    buckets: list[Bucket] = []
    stop = sum(sizes)
    start, high = stop, len(sizes)
    for index in range(len(sizes) - 1, -1, -1):
        start -= sizes[index]
        limit = later if buckets else first
        if (stop - start) * element >= limit or index == 0:
            buckets.append(Bucket(start, stop, range(index, high)))
            stop, high = start, index
    return buckets


def swaps(workers: int, size: int) -> bool:
    """Whether two workers need no ring for ``size`` bytes: each sends the other all it has, and adds."""
    return workers == 2 and size <= LARGEST_SWAP


def ring_bytes(size: int, workers: int) -> int:
    return 2 * (workers - 1) * size // workers


def broadcast_bytes(size: int, workers: int, rank: int, root: int = 0) -> tuple[int, int]:
    """Bytes that a worker (sends, receives) in a broadcast of ``size`` bytes along a binomial tree."""
    place = (rank - root) % workers
    children, reach = 0, 1
    while place + reach < workers and not place & reach:
        children += 1
        reach *= 2
    return children * size, size if place else 0


def traffic_of_all(
    schedule: Schedule, size: int, element: int = 4, segments: int = 1
) -> list[tuple[int, int]]:
    """Bytes that each rank (sends, receives) when a tensor of ``size`` bytes travels in ``segments`` segments."""
    chunks = schedule.chunks
    cuts = chunk_bounds(size // element, chunks * segments)
    starts = np.arange(0, chunks * segments, chunks)
    bounds = (cuts[starts + np.arange(chunks + 1)[:, np.newaxis]] - cuts[starts]).sum(axis=1)
    sent, received = np.zeros(schedule.workers, np.int64), np.zeros(schedule.workers, np.int64)
    for turn in schedule.rounds:
        low = turn.starts - turn.times + 1
        beyond = bounds[chunks] - bounds[chunks + np.minimum(0, low)]
        lengths = element * (bounds[turn.stops] - bounds[np.maximum(0, low)] + beyond)
        np.add.at(sent, turn.sources, lengths)
        np.add.at(received, turn.targets, lengths)
    return list(zip(sent.tolist(), received.tolist(), strict=True))


def lower_bound_bytes(items: int, item_size: int, workers: int) -> int:
    """Bytes that some worker must send in any all-reduce of ``items`` items: ceil(2 (n - 1)/n X) b.

    n - 1 contributions to each item must leave the workers that made them, and n - 1 copies of each result must reach
    the workers that did not: 2 (n - 1) X items in all, so one of n workers sends 2 (n - 1)/n X of them or more.
    """
    return -(-2 * (workers - 1) * items // workers) * item_size


def bandwidth_use(items: int, item_size: int, workers: int, seconds: float) -> float:
    return lower_bound_bytes(items, item_size, workers) / seconds


def ring_crossings(workers: int) -> float:
    """How many times a tensor crosses each link of a ring, the least that an all-reduce takes: 2 (n - 1)/n."""
    return 2 * (workers - 1) / workers


def busbw(size: float, seconds: float, workers: int) -> float:
    """Bytes a second as the busiest link sees them, as nccl-tests defines them: comparable between any n."""
    return size / seconds * ring_crossings(workers)

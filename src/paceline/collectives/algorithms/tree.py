"""The binomial tree: sums flow to rank 0 and the result flows back."""

from collections.abc import Sequence

from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer


def tree(hosts: Hosts) -> Schedule:
    """ceil(log2 n) rounds halve the ranks that still have something to say; as many hand the result back.

    Few messages, each of the whole tensor, and most ranks wait most of the time: for small tensors.
    """
    workers = len(hosts)
    up = [Round("reduce", sends) for sends in towards_first(range(workers), 1)]
    down = [Round("broadcast", sends) for sends in from_first(range(workers), 1)]
    return Schedule("tree", workers, 1, tuple(up + down))


def towards_first(members: Sequence[int], chunks: int) -> list[tuple[Transfer, ...]]:
    """Reduce ``chunks`` chunks into the first member: at distance 1, 2, 4, ... the right one of a pair sends left."""
    return [
        tuple(Transfer(right, left, 0, chunks, Then.REDUCE) for left, right in pairs)
        for pairs in _pairs(members)
    ]


def from_first(members: Sequence[int], chunks: int) -> list[tuple[Transfer, ...]]:
    """Give what the first member holds to all: the same pairs, the other way and in the other order."""
    return [
        tuple(Transfer(left, right, 0, chunks, Then.REPLACE) for left, right in pairs)
        for pairs in reversed(_pairs(members))
    ]


def _pairs(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Per distance, who meets whom."""
    count = len(members)
    distances = [1 << power for power in range((count - 1).bit_length())]
    return [
        [(members[left], members[left + far]) for left in range(0, count - far, 2 * far)] for far in distances
    ]

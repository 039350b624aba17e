"""Halving and doubling (Rabenseifner, 2004): a ring's little traffic in a tree's few rounds, for powers of two."""

from paceline.collectives.algorithms.folding import fold, power_of_two
from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer


def halving_doubling(hosts: Hosts) -> Schedule:
    """Partners at distance 1, 2, 4, ... halve what they are responsible for; the way back doubles it again.

    The largest messages go to the nearest ranks, which often are on the same host. A number of ranks that is no
    power of two costs two more rounds of the whole tensor.
    """
    workers = len(hosts)
    power = power_of_two(workers)
    distances = [1 << bit for bit in range(power.bit_length() - 1)]
    before, after = fold(workers, power)
    halving = [_halve(power, far) for far in distances]
    doubling = [_double(power, far) for far in reversed(distances)]
    return Schedule("halving-doubling", workers, power, (*before, *halving, *doubling, *after))


def _halve(power: int, far: int) -> Round:
    """Each rank sends the half that its partner goes on with."""
    sends = ((rank, rank ^ far) for rank in range(power))
    return Round(
        "halving",
        tuple(Transfer(rank, other, *_share(power, other, 2 * far), Then.REDUCE) for rank, other in sends),
    )


def _double(power: int, far: int) -> Round:
    """Each rank sends all that it has of the result."""
    return Round(
        "doubling",
        tuple(
            Transfer(rank, rank ^ far, *_share(power, rank, 2 * far), Then.REPLACE) for rank in range(power)
        ),
    )


def _share(power: int, rank: int, parts: int) -> tuple[int, int]:
    """The chunks that a rank is responsible for among so many parts: its lowest bit decides the first half."""
    start, stop = 0, power
    for bit in range(parts.bit_length() - 1):
        middle = (start + stop) // 2
        start, stop = (middle, stop) if rank >> bit & 1 else (start, middle)
    return start, stop

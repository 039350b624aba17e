"""The butterfly: recursive doubling of the whole tensor."""

from paceline.collectives.algorithms.folding import fold, power_of_two
from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer


def butterfly(hosts: Hosts) -> Schedule:
    """In round k, ranks that differ in bit k swap all they have, and both reduce: log2 n rounds and no way back.

    The fewest rounds of all, and log2 n whole tensors sent by each rank: for small tensors. Partners add the same two
    numbers, so all ranks hold the same sum to the last bit.
    """
    workers = len(hosts)
    power = power_of_two(workers)
    before, after = fold(workers, 1)
    swaps = [_swap(power, 1 << bit) for bit in range(power.bit_length() - 1)]
    return Schedule("butterfly", workers, 1, (*before, *swaps, *after))


def _swap(power: int, far: int) -> Round:
    return Round("swap", tuple(Transfer(rank, rank ^ far, 0, 1, Then.REDUCE) for rank in range(power)))

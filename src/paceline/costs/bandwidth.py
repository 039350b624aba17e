"""How well a collective uses the links: the least that must be moved, and the rates that benchmarks report."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from paceline.errors import unknown


def lower_bound_bytes(items: int, item_size: int, workers: int) -> int:
    """Bytes that some worker must send in any all-reduce of ``items`` items: ceil(2 (n - 1)/n X) b.

    n - 1 contributions to each item must leave the workers that made them, and n - 1 copies of each result must reach
    the workers that did not: 2 (n - 1) X items in all, so one of n workers sends 2 (n - 1)/n X of them or more.
    """
    return -(-2 * (workers - 1) * items // workers) * item_size


def bandwidth_use(items: int, item_size: int, workers: int, seconds: float) -> float:
    """Bytes a second that the least possible traffic makes of a measured time; over the link's rate, its use."""
    return lower_bound_bytes(items, item_size, workers) / seconds


def algbw(size: float, seconds: float) -> float:
    """Bytes a second as a user sees them, S/t; S is the whole tensor that a collective leaves or begins with."""
    return size / seconds


def busbw(collective: str, size: float, seconds: float, workers: int) -> float:
    """Bytes a second as the busiest link sees them, as nccl-tests defines them: comparable between any n.

    algbw times 2 (n - 1)/n for all_reduce, (n - 1)/n for all_gather and reduce_scatter, whose S is the n parts
    together, and 1 for broadcast and reduce.
    """
    if collective not in BUS_FACTORS:
        raise unknown("collective", collective, BUS_FACTORS)
    return algbw(size, seconds) * BUS_FACTORS[collective](workers)


BUS_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": lambda workers: 2 * (workers - 1) / workers,
        "broadcast": lambda workers: 1.0,  # noqa: ARG005
        "reduce": lambda workers: 1.0,  # noqa: ARG005
        "all_gather": lambda workers: (workers - 1) / workers,
        "reduce_scatter": lambda workers: (workers - 1) / workers,
    }
)

"""How well an all-reduce uses the links: the least that must be moved, and the rates that benchmarks report."""


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

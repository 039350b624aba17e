"""How many bytes of tensors one worker sends and receives in a collective; both runtimes count with these."""


def ring_bytes(size: int, workers: int) -> int:
    """What each worker sends, and receives, in a ring all-reduce of ``size`` bytes: 2 (n - 1) / n of it."""
    return 2 * (workers - 1) * size // workers


def broadcast_bytes(size: int, workers: int, rank: int, root: int = 0) -> tuple[int, int]:
    """Bytes that a worker (sends, receives) in a broadcast of ``size`` bytes along a binomial tree.

    Counted from the root, worker r has the children r + 1, r + 2, r + 4, ... up to its own lowest set bit.
    """
    place = (rank - root) % workers
    children, reach = 0, 1
    while place + reach < workers and not place & reach:
        children += 1
        reach *= 2
    return children * size, size if place else 0

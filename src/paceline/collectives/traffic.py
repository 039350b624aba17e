"""How many bytes of tensors one worker sends and receives in a collective; both runtimes count with these."""

from paceline.collectives.schedule import Schedule, chunk_bounds
from paceline.collectives.turns import alike


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


def schedule_bytes(schedule: Schedule, size: int, rank: int, element: int = 4) -> tuple[int, int]:
    """Bytes that a rank (sends, receives) when a tensor of ``size`` bytes goes through a schedule.

    The tensor is whole elements of ``element`` bytes, and so are chunks. All transfers are walked through: slow and
    obvious beside ``traffic_of_all``.
    """
    bounds = [element * bound for bound in chunk_bounds(size // element, schedule.chunks)]
    sent = received = 0
    for turn in schedule.rounds:
        for transfer in turn.transfers:
            length = bounds[transfer.stop] - bounds[transfer.start]
            sent += length if transfer.source == rank else 0
            received += length if transfer.target == rank else 0
    return sent, received


def traffic_of_all(
    schedule: Schedule, size: int, element: int = 4, segments: int = 1
) -> list[tuple[int, int]]:
    """What ``schedule_bytes`` says of each rank when the schedule is pipelined in so many segments.

    Like rounds are counted at once: a message of k turns carries the k chunks up to its own, counted round.
    """
    chunks = schedule.chunks
    bounds = _bounds(size // element, chunks, segments)
    sent, received = [0] * schedule.workers, [0] * schedule.workers
    for turn, times in alike(schedule.rounds):
        for transfer in turn.transfers:
            low = transfer.start - times + 1
            beyond = bounds[chunks] - bounds[chunks + low] if low < 0 else 0
            length = bounds[transfer.stop] - bounds[max(0, low)] + beyond
            sent[transfer.source] += element * length
            received[transfer.target] += element * length
    return list(zip(sent, received, strict=True))


def _bounds(length: int, chunks: int, segments: int) -> list[int]:
    """As ``chunk_bounds``, but each chunk as long as the chunks in its place in all segments together."""
    cuts = chunk_bounds(length, chunks * segments)
    starts = range(0, chunks * segments, chunks)
    return [sum(cuts[start + chunk] - cuts[start] for start in starts) for chunk in range(chunks + 1)]

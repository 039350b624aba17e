"""What schedules for powers of two do with other numbers of ranks."""

from paceline.collectives.schedule import Round, Then, Transfer


def fold(workers: int, chunks: int) -> tuple[list[Round], list[Round]]:
    """The rounds before and after: surplus ranks give a partner all they have, and wait for the result."""
    power = power_of_two(workers)
    surplus = range(power, workers)
    if not surplus:
        return [], []
    inwards = (Transfer(rank, rank - power, 0, chunks, Then.REDUCE) for rank in surplus)
    outwards = (Transfer(rank - power, rank, 0, chunks, Then.REPLACE) for rank in surplus)
    return [Round("fold", tuple(inwards))], [Round("hand back", tuple(outwards))]


def power_of_two(workers: int) -> int:
    """The largest power of two that is not more than ``workers``."""
    return 1 << (workers.bit_length() - 1)

"""The ring: everybody passes one chunk at a time to the right (Patarasuk and Yuan, 2009)."""

from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer


def ring(hosts: Hosts) -> Schedule:
    """n - 1 rounds of share-reduce leave each rank one finished chunk; n - 1 rounds of share-only pass them on.

    No rank sends more than 2 (n - 1) / n of the tensor, which is the least possible; latency grows with n.
    """
    workers = len(hosts)
    rounds = [_round(workers, step, "share-reduce", Then.REDUCE) for step in range(workers - 1)]
    rounds += [_round(workers, step, "share-only", Then.REPLACE) for step in range(workers - 1, 2 * (workers - 1))]
    return Schedule("ring", workers, workers, tuple(rounds))


def _round(workers: int, step: int, phase: str, then: Then) -> Round:
    """Rank r sends chunk r - step: the one that it received, and reduced, the round before."""
    sends = ((rank, (rank - step) % workers) for rank in range(workers))
    return Round(
        phase,
        tuple(Transfer(rank, (rank + 1) % workers, chunk, chunk + 1, then) for rank, chunk in sends),
    )
